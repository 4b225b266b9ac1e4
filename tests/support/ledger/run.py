"""One ledger run: real writers, relays and consumers as processes, killed at random, and the account at the end."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relevo.brokers import broker_for
from relevo.ops.migrate import migrate
from relevo.relay.flight import PAGES
from relevo.settings import load
from tests.support.ledger.account import Account, take_account
from tests.support.ledger.child import Child
from tests.support.ledger.tables import make_tables

UNREACHABLE, CONFIG = 69, 78
"""The exit codes of a process that finds no database at its start, or one that it may not write to."""
BATCH_MAX = 200
"""Messages of a page of the relays."""


@dataclass(frozen=True)
class Plan:
    """Size of a run. ``transactions`` per writer; ``kills`` in all, every ``kill_every_s`` seconds or so.
    ``batch``: messages in one transaction of a consumer, ``in_flight``: taken by it and not settled, both at most."""

    database: str
    broker: str
    broker_options: str = ""
    writers: int = 4
    relays: int = 2
    consumers: int = 2
    transactions: int = 500
    accounts: int = 100
    kills: int = 6
    kill_every_s: float = 1.5
    lease_s: float = 2.0
    patience_s: float = 120.0
    seed: int = 1
    relay_module: str = "relevo"
    source: str = "mark"
    topic: str = "ledger.account"
    batch: int = 100
    in_flight: int = 100
    workers_database: str = ""
    """The URL by which relays and consumers connect, where it is another one than the writers'."""

    @property
    def doubles_max(self) -> int:
        """Messages that may be on the wire twice when every relay is cut off from its broker once: those of the pages
        that are under way at the same time."""
        pages = PAGES if broker_for(self.broker).capabilities.prefix_safe else 1
        return self.relays * pages * BATCH_MAX


@dataclass
class LedgerRun:
    """Use as ``with LedgerRun(plan, folder) as run: …``; its processes are ended with the block."""

    plan: Plan
    folder: Path
    kills: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    """Starts that found no database, or a read-only one."""

    def __enter__(self) -> LedgerRun:
        plan = self.plan
        config = self.folder / "relevo.toml"
        config.write_text(
            f'service = "ledger"\n[database]\nurl = "{plan.database}"\n[broker]\nurl = "{plan.broker}"\n'
            f"options = {{ {plan.broker_options} }}\n"
            f'[relay]\nsource = "{plan.source}"\n'
            f"lease_s = {plan.lease_s}\nsend_timeout_s = {plan.lease_s / 3}\nbatch_max = {BATCH_MAX}\n"
            f"[consumer]\nlease_s = {plan.lease_s}\nin_flight_max = {plan.in_flight}\n"
            f"batch = {plan.batch}\n"
        )
        self.settings = load(config, environ={})
        migrate(self.settings)
        make_tables(plan.database, plan.accounts)
        if plan.workers_database:
            config.write_text(config.read_text().replace(f'"{plan.database}"', f'"{plan.workers_database}"'))
        common = ["--config", str(config)]
        python = sys.executable
        self.relays = [
            self.child(f"relay{number}", [python, "-m", plan.relay_module, *common, "relay"])
            for number in range(plan.relays)
        ]
        self.consumers = [
            self.child(
                f"consumer{number}", [python, "-m", "relevo", *common, "consume", "tests.support.ledger.app:books"]
            )
            for number in range(plan.consumers)
        ]
        self.writers = [
            self.writer(f"writer{number}", seed=plan.seed * 100 + number, transactions=plan.transactions)
            for number in range(plan.writers)
        ]
        return self

    def __exit__(self, *exc: object) -> None:
        for child in [*self.writers, *self.relays, *self.consumers]:
            child.end()

    def child(self, name: str, command: list[str]) -> Child:
        return Child(name, command, self.folder / f"{name}.log", self.plan.topic)

    def writer(self, name: str, *, seed: int, transactions: int) -> Child:
        """Not started."""
        command = [sys.executable, "-m", "tests.support.ledger.writer", self.plan.database, str(seed)]
        return self.child(name, [*command, str(transactions), str(self.plan.accounts)])

    def play(
        self, *, between: Callable[[int], None] = lambda kill: None, meanwhile: Callable[[], None] = lambda: None
    ) -> Account:
        """Write, kill at random, wait until everything arrived; the account as it is then or after the patience.

        ``between`` is called with the number of kills so far, before each; ``meanwhile`` about ten times a second. It
        may kill and start a process (whoever did that in a thread would be seen between the two), and add a writer.
        """
        chance = random.Random(self.plan.seed)
        for child in [*self.relays, *self.consumers, *self.writers]:
            child.start()
        deadline = time.monotonic() + self.plan.patience_s
        next_kill = time.monotonic() + self.plan.kill_every_s
        done = 0
        while time.monotonic() < deadline:
            meanwhile()
            for child in [*self.relays, *self.consumers]:
                if not child.running and self._could_not_start(child):
                    self.refused += 1
                    child.start()
                elif not child.running:
                    raise AssertionError(f"{child.name} ended by itself:\n{child.tail()}")
            if done < self.plan.kills and time.monotonic() >= next_kill:
                between(done)
                victim = chance.choice([*self.relays, *self.consumers])
                victim.kill()
                self.kills[victim.name] = self.kills.get(victim.name, 0) + 1
                victim.start()
                done += 1
                next_kill = time.monotonic() + chance.uniform(0.5, 1.5) * self.plan.kill_every_s
            if done >= self.plan.kills and not any(writer.running for writer in self.writers):
                account = take_account(self.plan.database)
                if account.holds or account.twice or account.out_of_order:
                    break
            time.sleep(0.1)
        for writer in self.writers:
            assert writer.process is not None and writer.process.poll() == 0, f"{writer.name} failed:\n{writer.tail()}"
        return take_account(self.plan.database)

    def report(self, account: Account) -> str:
        killed = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        text = f"ledger: {account}; killed {sum(self.kills.values())} times ({killed})"
        return f"{text}, {self.refused} starts without a database that can be written" if self.refused else text

    def _could_not_start(self, child: Child) -> bool:
        """Whether a process found no database at its start, or one that is read-only. It then ends with an exit code
        of its own, for its orchestrator to start it again, which is the run's part here; one that has started never
        ends so."""
        assert child.process is not None
        log = child.log.read_bytes()[child.began_at :]
        refused = child.process.returncode == UNREACHABLE or (
            child.process.returncode == CONFIG and b"read-only" in log
        )
        return bool(self.plan.workers_database) and refused and b" ready: " not in log

    def tails(self) -> Iterator[str]:
        for child in [*self.relays, *self.consumers]:
            yield f"--- {child.name}\n{child.tail()}"

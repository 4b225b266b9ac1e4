"""One small real system: a relay, a consumer, a writer, and whatever else a scenario wants, on one stack."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from relevo.ops.migrate import migrate
from relevo.settings import Settings, load
from tests.support.ledger.account import Account, take_account
from tests.support.ledger.app import begin, connect, execute
from tests.support.ledger.child import Child
from tests.support.ledger.tables import make_tables
from tests.support.log_stores import unsettled_by_cursors
from tests.support.matrix import wire
from tests.support.waiting import eventually_sync

LEASE_S = 2.0
SEND_TIMEOUT_S = 1.0
"""Of relays that are hit. It is below their lease, which is waited for, and a broker may be slow for so long."""
PATIENT = (30.0, 10.0)
"""Lease and send time-out of relays that are not: nobody waits for them, and nothing is sent again."""
PAGE = 20
"""Messages of a relay's page: small, so that a run has several."""
ACCOUNTS = 5
ROLES = {
    "relay": ["relay"],
    "consumer": ["consume", "tests.support.matrix.app:books"],
    "effects": ["effects", "run", "tests.support.matrix.acts:ship"],
}
"""Processes by what they do: the arguments of ``relevo``."""


@dataclass(frozen=True)
class Stack:
    """``settles_s``: after how long the broker gives away what a frozen or dead consumer had. ``batch``: messages in
    one transaction of a consumer, at most. ``source``: what the relays read with."""

    name: str
    database: str
    broker: str
    topic: str
    options: dict[str, Any] = field(default_factory=dict)
    settles_s: float = LEASE_S
    batch: int = 100
    source: str = "mark"


@dataclass
class System:
    """``with System(stack, folder) as system``: nothing runs yet; what was started ends with the block."""

    stack: Stack
    folder: Path
    switches: Collection[str] = ()
    after_s: float | None = None
    more_settings: str = ""
    patient: bool = False
    """No relay is hit."""
    children: list[Child] = field(default_factory=list)
    _written: int = 0

    def __enter__(self) -> System:
        lease_s, send_timeout_s = PATIENT if self.patient else (LEASE_S, SEND_TIMEOUT_S)
        self.config.write_text(
            f'service = "ledger"\n[database]\nurl = "{self.stack.database}"\n[broker]\nurl = "{self.stack.broker}"\n'
            f'[relay]\nsource = "{self.stack.source}"\n'
            f"lease_s = {lease_s}\nsend_timeout_s = {send_timeout_s}\nbatch_max = {PAGE}\n"
            f"[consumer]\nlease_s = {LEASE_S}\nin_flight_max = 16\nhandler_idle_timeout_s = 1.0\n"
            f"batch = {self.stack.batch}\n"
            f"[effects]\ngrace_s = 0.5\npoll_s = 0.1\n{self.more_settings}"
            "[broker.options]\n" + "".join(f'"{name}" = {_toml(value)}\n' for name, value in self.stack.options.items())
        )
        self.settings: Settings = load(self.config, environ={})
        migrate(self.settings)
        make_tables(self.stack.database, ACCOUNTS)
        self.do("create table ledger_act (event_id text, idempotency_key text)")
        self.do("create table ledger_fixed (yes integer)")
        self.do("create table ledger_replayed (event_id text)")
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self.children:
            if child.running:
                child.send(signal.SIGCONT)
                child.process.kill()  # type: ignore[union-attr]
        for child in self.children:
            child.end()

    @property
    def config(self) -> Path:
        return self.folder / "relevo.toml"

    def start(self, role: str, probe: str | None = None) -> Child:
        return self.run(role, ROLES[role], probe)

    def run(self, name: str, arguments: list[str], probe: str | None = None) -> Child:
        """A process of ``relevo`` with ``arguments``, armed with ``probe``."""
        command = [sys.executable, "-m", "relevo", "--config", str(self.config), *arguments]
        return self._started(name, command, {"RELEVO_PROBE": probe} if probe else {})

    def write(self, transactions: int = 40) -> None:
        """A writer works through ``transactions``; returns when it is done."""
        self._written += 1
        module = "tests.support.ledger.writer"
        command = [sys.executable, "-m", module, self.stack.database, str(self._written), str(transactions)]
        more = {} if self.after_s is None else {"LEDGER_AFTER_S": str(self.after_s)}
        writer = self._started("writer", [*command, str(ACCOUNTS)], more)
        assert writer.process is not None
        assert writer.process.wait(60) == 0, writer.tail()

    def _started(self, name: str, command: list[str], more: dict[str, str]) -> Child:
        log = self.folder / f"{len(self.children)}-{name}.log"
        child = Child(f"{len(self.children)}-{name}", command, log, self.stack.topic)
        self.children.append(child)
        more = {"LEDGER_DATABASE": self.stack.database, **more}
        child.start(**more, **{f"LEDGER_{name}": "1" for name in self.switches})
        return child

    def complete(self, arguments: list[str]) -> Child:
        """A command of ``relevo`` to its end, which must be a good one: at once, or when it is given again, since a
        broker that is slow to confirm leaves something to do."""
        for _ in range(3):
            child = self.run("operator", arguments)
            assert child.process is not None
            self.wait(lambda: not child.running, f"{arguments} ends")  # noqa: B023
            if child.process.poll() == 0:
                break
        assert child.process is not None
        assert child.process.poll() == 0, child.tail()
        return child

    def open_topic(self, topic: str | None = None, consumers: Sequence[str] = ("books", wire.READER)) -> None:
        """Create it, and what a broker without history needs so that it keeps its messages for ``consumers``."""
        wire.declare(self.stack.broker, self.stack.options, topic or self.stack.topic, consumers)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(connect(self.stack.database)) as connection:
            return execute(connection, sql)

    def do(self, sql: str) -> None:
        with contextlib.closing(connect(self.stack.database)) as connection:
            begin(connection)
            execute(connection, sql)
            connection.commit()

    def count(self, what: str) -> int:
        return int(self.query(f"select count(*) from {what}")[0][0])

    def account(self) -> Account:
        return take_account(self.stack.database)

    def unsettled(self) -> int:
        if self.stack.source in ("log", "wal"):
            return int(self.query(unsettled_by_cursors(self.stack.database))[0][0])
        return self.count("relevo_outbox where settled_at is null")

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
        """Until ``condition`` holds; fails with the last words of every process."""
        try:
            eventually_sync(condition, what=what, timeout_s=timeout_s, every_s=0.05)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), str(self.account()), *self.tails()])) from None

    def tails(self) -> list[str]:
        """What to show when something does not hold: what was out of order, and every process's last words."""
        swapped = self.query("select account, version, previous from ledger_effect where version <> previous + 1")
        logs = [f"--- {child.name}\n{child.tail()}" for child in self.children if "writer" not in child.name]
        return [f"out of order (account, version, the one before): {swapped}", *logs]

    def on_the_wire(self) -> wire.Wire:
        committed = self.count("ledger_change")
        return wire.Wire.of(wire.read(self.stack.broker, self.stack.options, self.stack.topic, committed))


def past(seconds: float) -> Callable[[], bool]:
    """A condition that holds once so much time has passed: a lease is over by the clock, by nothing else."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _toml(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""An outage of the broker under load, in the middle of a ledger run, and its figures."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support.ledger.account import Account, take_account
from tests.support.ledger.app import connect, execute
from tests.support.ledger.child import Child
from tests.support.ledger.run import LedgerRun, Plan
from tests.support.matrix.wire import Wire, read
from tests.support.waiting import eventually_sync


class Outage(Protocol):
    """A way to be away. ``back`` returns the time (``time.time()``) at which an independent client was served again."""

    def away(self) -> None: ...

    def back(self) -> float: ...


@dataclass(frozen=True)
class Load:
    """``stock``: transactions of each writer before the relays start, to know the normal rate. Then ``per_s``
    transactions a second of each writer, all through an outage of ``seconds``, and ``around_s`` before and after it."""

    stock: int = 1_500
    per_s: float = 25.0
    seconds: float = 120.0
    around_s: float = 15.0


@dataclass(frozen=True)
class Figures:
    """Seconds count from the moment another client was served again, or (``first_after_start_s``) from the moment the
    server was started or thawed. Rates in events per second, the relays' own, while everything else goes on."""

    account: Account
    backlog: int
    first_s: float
    first_after_start_s: float
    empty_s: float
    drain_rate: float
    normal_rate: float
    wire: Wire
    doubles_max: int

    def __str__(self) -> str:
        return (
            f"first event {self.first_s:+.2f} s after the broker was back ({self.first_after_start_s:.2f} s after its "
            f"start), backlog of {self.backlog} gone after {self.empty_s:.2f} s: {self.drain_rate:,.0f}/s, normally "
            f"{self.normal_rate:,.0f}/s; doubled on the wire {self.wire.repeats} (at most {self.doubles_max}), keys "
            f"sent anew from an earlier event {sum(self.wire.restarts.values())}, swapped {len(self.wire.swapped)}\n"
            f"  {self.account}"
        )

    def check(self) -> None:
        assert self.account.holds, str(self)
        assert len(self.wire.ids) == self.account.committed, str(self)
        assert self.account.attempts == 0, str(self)
        assert self.wire.repeats <= self.doubles_max, str(self)
        assert not self.wire.swapped, str(self)


def play(plan: Plan, folder: Path, outage: Outage, load: Load, options: dict[str, Any]) -> Figures:
    """The whole run. ``plan`` brings no writers of its own; ``options`` are the broker's, as values."""
    with LedgerRun(plan, folder) as run:
        database = plan.database
        try:
            return _play(run, outage, load, options)
        except BaseException:
            print("\n".join([str(take_account(database)), *run.tails()]))
            raise


def _play(run: LedgerRun, outage: Outage, load: Load, options: dict[str, Any]) -> Figures:
    plan, database = run.plan, run.plan.database
    _operate(run, "pause")  # so that the relays have shared the lanes before they are measured
    for child in [*run.consumers, *run.relays]:
        child.start()
    eventually_sync(lambda: _owners(database) == plan.relays, what="every relay has lanes", timeout_s=60)
    _write(run, "stock", load.stock)()
    _operate(run, "resume")
    _all_out(run)
    first, last, count = _settled(database, "1 = 1")
    normal_rate = count / max(last - first, 1e-3)
    eventually_sync(
        lambda: take_account(database).effects >= count, what="the stock is handled", timeout_s=300, every_s=0.5
    )
    finish = _write(run, "load", int(load.per_s * (load.seconds + 2 * load.around_s)), load.per_s)
    eventually_sync(
        lambda: take_account(database).effects > count + load.per_s * plan.writers * load.around_s / 2,
        what="events flow under load",
        timeout_s=120,
        every_s=0.2,
    )
    outage.away()
    time.sleep(load.seconds)  # the outage itself
    during = take_account(database)
    assert during.parked == 0 and during.attempts == 0, str(during)
    started_at = time.time()
    back_at = outage.back()
    _all_out(run)
    first, last, _ = _settled(database, f"{_at('settled_at', database)} >= {started_at}")
    backlog = f"{_at('created_at', database)} < {back_at} and {_at('settled_at', database)} >= {started_at}"
    _, empty, waited = _settled(database, backlog)
    finish()
    _all_out(run)
    eventually_sync(
        lambda: take_account(database).holds, what="the ledger holds", timeout_s=plan.patience_s, every_s=0.5
    )
    account = take_account(database)
    wire = Wire.of(read(plan.broker, options, plan.topic, account.committed, patience_s=120))
    return Figures(
        account=account,
        backlog=waited,
        first_s=first - back_at,
        first_after_start_s=first - started_at,
        empty_s=empty - back_at,
        drain_rate=waited / max(empty - first, 1e-3),
        normal_rate=normal_rate,
        wire=wire,
        doubles_max=plan.doubles_max,
    )


def _operate(run: LedgerRun, verb: str) -> None:
    command = [sys.executable, "-m", "relevo", "--config", str(run.folder / "relevo.toml"), verb]
    why = ["--why", "stock"] if verb == "pause" else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    done = subprocess.run(
        [*command, "destination", run.plan.topic, *why], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _owners(database: str) -> int:
    with contextlib.closing(connect(database)) as connection:
        return int(execute(connection, "select count(distinct holder) from relevo_lane")[0][0])


def _write(run: LedgerRun, name: str, transactions: int, per_s: float | None = None) -> Callable[[], None]:
    """Start the plan's number of writers; the function waits for their end."""
    plan = run.plan
    seed = 7_000 if per_s is None else 8_000
    writers: list[Child] = []
    for number in range(plan.writers):
        writer = run.writer(f"{name}{number}", seed=seed + number, transactions=transactions)
        writer.start(**({} if per_s is None else {"LEDGER_PER_S": str(per_s)}))
        writers.append(writer)
    run.writers += writers

    def finish() -> None:
        for writer in writers:
            assert writer.process is not None
            assert writer.process.wait(600) == 0, writer.tail()

    return finish


def _all_out(run: LedgerRun) -> None:
    """Wait until nothing older than this moment is unsettled."""
    database, now = run.plan.database, time.time()
    sql = f"select count(*) from relevo_outbox where settled_at is null and {_at('created_at', database)} < {now}"

    def empty() -> bool:
        for child in [*run.relays, *run.consumers]:
            assert child.running, f"{child.name} ended by itself:\n{child.tail()}"
        with contextlib.closing(connect(database)) as connection:
            return not execute(connection, sql)[0][0]

    eventually_sync(empty, what="the outbox is empty", timeout_s=300, every_s=0.2)


def _settled(database: str, where: str) -> tuple[float, float, int]:
    """First and last time of settling (as ``time.time()``), and how many, of the settled rows that fit."""
    at = _at("settled_at", database)
    with contextlib.closing(connect(database)) as connection:
        row = execute(
            connection,
            f"select min({at}), max({at}), count(*) from relevo_outbox where settled_at is not null and {where}",
        )[0]
    assert row[2], f"nothing was settled: {where}"
    return float(row[0]), float(row[1]), int(row[2])


def _at(column: str, database: str) -> str:
    return f"{column} / 1000.0" if database.startswith("sqlite") else f"cast(extract(epoch from {column}) as float8)"

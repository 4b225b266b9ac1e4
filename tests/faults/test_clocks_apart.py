"""Processes whose clocks are wrong, in other zones than the database, on a night that has an hour too few."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from relevo.clients import database_for
from relevo.storage import pausing
from tests.support.cli import environment
from tests.support.clocked import WAIT_S, Tick, make_tables, outbox
from tests.support.relays import Store
from tests.support.stacks import EMBEDDED, KAFKA, RABBITMQ, STACKS, Stack
from tests.support.waiting import eventually

AHEAD = 5.0
BEHIND = -5.0


def on(*often: str) -> list[Any]:
    """Every stack; those that are not named in the soak only."""
    return [pytest.param(name, marks=[] if name in often else pytest.mark.soak) for name in STACKS]


def spring_night() -> float:
    """How far ahead a clock is that will skip Berlin's missing hour in two seconds: months."""
    now = datetime.now(UTC)
    for year in (now.year, now.year + 1):
        last = datetime(year, 3, 31, 1, tzinfo=UTC)
        change = last - timedelta(days=(last.weekday() + 1) % 7)
        if change - now > timedelta(days=30):
            return (change - now).total_seconds() - 2
    raise AssertionError("there is one every year")


class Clocks:
    """Processes by their clocks: how wrong, in which zone, with which zone for the session."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.store = stack.store
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "relevo.toml").write_text(
            stack.config(lease_s=15.0, relay="batch_max = 20\n")
            + "[consumer]\nlease_s = 4.0\nin_flight_max = 8\n[effects]\ngrace_s = 1.0\npoll_s = 0.1\n"
        )

    def start(self, wrong_s: float, zone: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.log(len(self.processes))
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._command(wrong_s, arguments),
                cwd=self.folder,
                env=self._environment(zone),
                stdout=file,
                stderr=file,
            )
        self.processes.append(process)
        return process

    def run(self, wrong_s: float, *arguments: str) -> str:
        done = subprocess.run(
            self._command(wrong_s, arguments),
            cwd=self.folder,
            env=self._environment("America/St_Johns"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _command(self, wrong_s: float, arguments: tuple[str, ...]) -> list[str]:
        config = str(self.folder / "relevo.toml")
        return [sys.executable, "-m", "tests.support.skewed", str(wrong_s), "--config", config, *arguments]

    def _environment(self, zone: str) -> dict[str, str]:
        more = {"TZ": zone, "PGTZ": "America/New_York", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        more |= {"CLOCKED_TOPIC": self.stack.topic, "CLOCKED_DATABASE": self.store.url}
        return environment(more)


@pytest.fixture
async def clocks(stack: Stack, tmp_path: Path) -> AsyncIterator[Clocks]:
    """The database stands in Asia."""
    store = stack.store
    if store.is_postgres:
        store.do(f"alter database {store.url.rsplit('/', 1)[1]} set timezone = 'Asia/Kolkata'")
    make_tables(store.url)
    await stack.open()
    if not stack.broker.capabilities.keeps_history:
        await (await stack.broker.subscribe(f"books-{stack.topic}", [stack.topic])).aclose()
    started = Clocks(stack, tmp_path)
    try:
        yield started
    finally:
        started.end()


def add(clocks: Clocks, *ticks: Tick, **when: Any) -> None:
    with contextlib.closing(clocks.store.connect()) as connection:
        for tick in ticks:
            outbox.add(connection, tick, topic=clocks.stack.topic, **when)
        connection.commit()


@pytest.mark.parametrize("stack", on(KAFKA, RABBITMQ), indirect=True)
async def test_due_times_leases_and_order(clocks: Clocks) -> None:
    """FAILURES row 43: two relays, two consumers and two runners of effects, each pair with clocks seconds or months
    apart. Nothing is early, nothing comes months late, order holds, no lease is believed to be over that is not."""
    store, night = clocks.store, spring_night()
    for number, (wrong_s, zone) in enumerate(((AHEAD, "UTC"), (night, "Europe/Berlin"))):
        clocks.start(wrong_s, zone, "relay")
        clocks.start((AHEAD, BEHIND)[number], "Asia/Tokyo", "consume", "tests.support.clocked:books")
        clocks.start(wrong_s, zone, "effects", "run", "tests.support.clocked:ring")
    names = [f"n{number}" for number in range(6)]
    for number in range(8):
        then = {3: "wait", 5: "act"}.get(number, "")
        add(clocks, *(Tick(name, number, then) for name in names))
    for after_s in (1, 2, 3):
        add(clocks, Tick(f"after{after_s}", 0), after=timedelta(seconds=after_s))
    add(clocks, Tick("at", 0), at=datetime.now(ZoneInfo("Asia/Kolkata")) + timedelta(seconds=3))
    due = dict(store.query(f"select cast(event_id as text), {seconds(store, 'due_at')} from relevo_scheduled"))
    assert len(due) == 4
    await eventually(lambda: count(clocks, "clocked_run") == 52, what="all was handled", timeout_s=60, every_s=0.1)
    await eventually(
        lambda: count(clocks, "relevo_effect where state = 'done'") == 6, what="all acts are done", timeout_s=60
    )
    assert store.query("select count(*), count(distinct event_id) from clocked_act") == [(6, 6)]
    runs = store.query("select name, number from clocked_run order by at")
    for name in names:
        assert [number for each, number in runs if each == name] == list(range(8))
    times = store.query(
        f"select cast(o.event_id as text), {seconds(store, 'o.created_at')}, {seconds(store, 'r.at')}, r.number "
        "from clocked_run r join relevo_outbox o on cast(o.event_id as text) = r.event_id"
    )
    assert len(times) == 52
    assert all(ran - made >= WAIT_S for _, made, ran, number in times if number == 3)
    assert all(made >= due[event_id] for event_id, made, _, _ in times if event_id in due)
    # At the start lanes move from the first relay to the second; whoever believes leases to be over takes them again.
    assert store.query("select max(epoch) from relevo_lane")[0][0] <= 5
    there = (datetime.now(UTC) + timedelta(seconds=night)).strftime("%Y-%m-")
    await eventually(lambda: there in clocks.log(3).read_text(), what="the log shows the wrong clock", timeout_s=60)


@pytest.mark.parametrize("stack", on(EMBEDDED), indirect=True)
async def test_windows_and_pauses_as_an_operator_with_a_wrong_clock_sees_them(clocks: Clocks) -> None:
    """FAILURES row 43: an inbox row of today is within its window although the operator's clock is months ahead; a
    pause is as old as the database says."""
    clocks.start(BEHIND, "Asia/Tokyo", "relay")
    clocks.start(spring_night(), "Europe/Berlin", "consume", "tests.support.clocked:books")
    add(clocks, *(Tick("n", number) for number in range(5)))
    await eventually(lambda: count(clocks, "clocked_run") == 5, what="all was handled", timeout_s=60, every_s=0.1)
    clocks.run(spring_night(), "purge", "--inbox", "--outbox", "--yes")
    assert count(clocks, "relevo_inbox") == 5
    assert count(clocks, "relevo_outbox") == 5
    clocks.run(spring_night(), "pause", "destination", clocks.stack.topic, "--why", "a test")
    database = database_for(clocks.store.settings)
    (pause,) = (await database.run(pausing.load(), read_only=True)).all
    await database.aclose()
    assert -1 < pause.age_s < 120


@pytest.mark.parametrize("stack", on(RABBITMQ), indirect=True)
async def test_a_queue_that_two_clocks_filled(clocks: Clocks) -> None:
    """FAILURES row 43: a key parks at a consumer whose clock is months ahead, and goes on filling at one whose clock is
    behind: redriven, its messages come in the order in which they were sent."""
    clocks.start(0, "UTC", "relay")
    first = clocks.start(spring_night(), "Europe/Berlin", "consume", "tests.support.clocked:books")
    add(clocks, Tick("n", 1, "bad"), Tick("n", 2, "bad"))
    await eventually(lambda: count(clocks, "relevo_held_message") == 2, what="parked", timeout_s=60, every_s=0.1)
    first.terminate()
    assert first.wait(30) == 0
    clocks.start(BEHIND, "Asia/Tokyo", "consume", "tests.support.clocked:books")
    add(clocks, Tick("n", 3, "bad"), Tick("n", 4, "bad"))
    await eventually(lambda: count(clocks, "relevo_held_message") == 4, what="behind", timeout_s=60, every_s=0.1)
    clocks.store.do("insert into clocked_fixed values (1)")
    clocks.run(AHEAD, "parked", "redrive", "--consumer", f"books-{clocks.stack.topic}", "--yes")
    await eventually(lambda: count(clocks, "clocked_run") == 4, what="drained", timeout_s=60, every_s=0.1)
    assert clocks.store.query("select number from clocked_run order by at, number") == [(1,), (2,), (3,), (4,)]


def count(clocks: Clocks, what: str) -> int:
    return int(clocks.store.query(f"select count(*) from {what}")[0][0])


def seconds(store: Store, column: str) -> str:
    """The column as Unix time."""
    return f"cast(extract(epoch from {column}) as double precision)" if store.is_postgres else f"{column} / 1000.0"

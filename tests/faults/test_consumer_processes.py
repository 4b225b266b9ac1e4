"""The real `relevo consume` as a process, killed with SIGKILL: on real databases, with the embedded broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.brokers import broker_for
from relevo.message import Message
from tests.support.cli import environment
from tests.support.consumers import effects, held, inbox, make_effects, order
from tests.support.relays import Store
from tests.support.waiting import eventually_sync


class Consumers:
    """Starts consumer processes one after the other on one store and one embedded broker."""

    def __init__(self, store: Store, folder: Path, consumer: str = "tests.support.crashing:billing") -> None:
        self.store = store
        self.consumer = consumer
        self.folder = folder
        self.broker_url = f"embedded:{folder / 'broker.db'}"
        self.config = folder / "relevo.toml"
        self.config.write_text(
            f'[database]\nurl = "{store.url}"\n[broker]\nurl = "{self.broker_url}"\n'
            "[broker.options]\nlease_s = 1.5\n[consumer]\nlease_s = 1.5\nin_flight_max = 600\nbatch_max = 600\n"
        )
        self.processes: list[subprocess.Popen[bytes]] = []

    async def publish(self, messages: list[Message]) -> None:
        publisher = await broker_for(self.broker_url).publisher(source="urn:relevo:test")
        assert await publisher.publish(messages) == {}
        await publisher.aclose()

    def start(self, probe: str | None = None, killer: int = -1, stuck: int = -1) -> subprocess.Popen[bytes]:
        variables = {"TEST_KILLER": str(killer), "TEST_STUCK": str(stuck)} | ({"RELEVO_PROBE": probe} if probe else {})
        with (self.folder / f"consumer{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "relevo",
                    "--config",
                    str(self.config),
                    "consume",
                    self.consumer,
                ],
                cwd=Path(__file__).resolve().parents[2],
                env=environment(variables),
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def log(self) -> str:
        return (self.folder / f"consumer{len(self.processes) - 1}.log").read_text()

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)


@pytest.fixture
def consumers(store: Store, tmp_path: Path) -> Iterator[Consumers]:
    make_effects(store)
    started = Consumers(store, tmp_path)
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize("point", ["taken", "journaled", "began", "handled", "committed", "settled"])
async def test_a_consumer_killed_at_a_point_neither_loses_nor_doubles(consumers: Consumers, point: str) -> None:
    """FAILURES row 32 (committed: after the commit, before the acknowledgement) and its siblings. The probe proves that
    the process was killed in the section meant; the next one finishes, with one effect for each message, in order."""
    await consumers.publish([order(number, "one") for number in range(12)])
    first = consumers.start(probe=f"consumer.{point}=kill:{1 if point in ('taken', 'journaled') else 5}")
    assert first.wait(30) == -signal.SIGKILL
    assert f"probe consumer.{point}: SIGKILL" in consumers.log()
    second = consumers.start()
    eventually_sync(lambda: len(effects(consumers.store)) >= 12, what="all effects")
    eventually_sync(lambda: len(inbox(consumers.store)) == 12, what="all inbox rows")
    # A batch may have been committed whole by then: the next process must have seen what it left in the journal.
    running = f"select count(*) from relevo_process where pid = {second.pid}"
    eventually_sync(lambda: consumers.store.query(running) == [(1,)], what="the next process runs")
    eventually_sync(lambda: consumers.store.query("select count(*) from relevo_journal") == [(0,)], what="its journal")
    second.terminate()
    assert second.wait(20) == 0, consumers.log()
    assert effects(consumers.store) == list(range(12))
    assert held(consumers.store) == []
    assert consumers.store.query("select count(*) from relevo_journal") == [(0,)]
    assert (second.pid,) not in consumers.store.query("select pid from relevo_process")


async def test_a_message_that_kills_its_process_parks_and_its_neighbours_do_not(consumers: Consumers) -> None:
    """FAILURES row 33. 500 messages of 500 keys; one kills its process whenever it is handled. It dies once beside the
    others, then alone, attempts being committed before each run, until they are used up; then it is parked, with the
    reason. None of its 499 neighbours is, and each has one effect."""
    count, killer = 500, 250
    await consumers.publish([order(number, f"k{number}") for number in range(count)])
    deaths = 0
    while deaths < 10:
        process = consumers.start(killer=killer)
        eventually_sync(
            lambda running=process: running.poll() is not None or held(consumers.store) != [],
            what="the process died, or the key is parked",
            timeout_s=40,
        )
        if held(consumers.store):
            break
        assert process.wait(10) == -signal.SIGKILL
        deaths += 1
    eventually_sync(lambda: len(effects(consumers.store)) >= count - 1, what="the neighbours' effects", timeout_s=60)
    process.terminate()
    assert process.wait(20) == 0, consumers.log()
    assert deaths == 4  # once beside the others, then alone for each of its three attempts
    assert sorted(effects(consumers.store)) == [number for number in range(count) if number != killer]
    [(state, reason, error_type, attempts)] = held(consumers.store)
    assert (state, error_type, attempts) == ("parked", "ProcessDied", 3)
    assert "killed its process 3 times" in reason


async def test_a_second_signal_leaves_at_once_past_a_handler_that_hangs(consumers: Consumers) -> None:
    """The first signal waits for the handler that runs; the second does not, although it hangs in a thread. What it
    wrote is rolled back by the server, and the next process handles the message."""
    await consumers.publish([order(1, "one"), order(2, "other")])
    process = consumers.start(stuck=1)
    eventually_sync(lambda: "stuck" in consumers.log(), what="the handler hangs")
    process.terminate()
    eventually_sync(lambda: "SIGTERM: finishing" in consumers.log(), what="the first signal is taken")
    assert process.poll() is None
    # What comes sooner than a moment later is the same signal, sent to a whole group.
    eventually_sync(
        lambda: "a second signal came" in consumers.log() or process.terminate(), what="a second signal", every_s=0.1
    )
    # On SQLite the handler also holds the one write lock: bookkeeping under way ends with its busy time-out.
    assert process.wait(25) == 128 + signal.SIGTERM
    again = consumers.start()
    eventually_sync(lambda: sorted(effects(consumers.store)) == [1, 2], what="both effects")
    again.terminate()
    assert again.wait(20) == 0, consumers.log()
    assert held(consumers.store) == []

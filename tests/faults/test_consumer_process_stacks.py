"""The real `relevo consume` as a process, killed with SIGKILL, on PostgreSQL with Kafka and with RabbitMQ."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import environment
from tests.support.consumers import effects, held, inbox, queue
from tests.support.consuming import Consuming, open_consuming
from tests.support.stacks import KAFKA, RABBITMQ
from tests.support.waiting import eventually_sync

REPO = Path(__file__).resolve().parents[2]


class Members:
    """Consumer processes of one group, and what they said."""

    def __init__(self, consuming: Consuming, folder: Path) -> None:
        self.consuming = consuming
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.config = folder / "members.toml"
        settings = "[consumer]\nlease_s = 1.5\nin_flight_max = 600\nbatch_max = 600\n"
        self.config.write_text(consuming.config(lease_s=3.0) + settings)

    def start(self, probe: str | None = None, killer: int = -1) -> subprocess.Popen[bytes]:
        more = {
            "TEST_KILLER": str(killer),
            "TEST_ATTEMPTS": "2",
            "TEST_CONSUMER": self.consuming.consumer,
            "TEST_TOPIC": self.consuming.topic,
            **({"RELEVO_PROBE": probe} if probe else {}),
        }
        command = [sys.executable, "-m", "relevo", "--config", str(self.config), "consume"]
        with (self.folder / f"member{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "tests.support.crashing:billing"], cwd=REPO, env=environment(more), stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def log(self, number: int = -1) -> str:
        number = number % len(self.processes)
        return (self.folder / f"member{number}.log").read_text()

    def idle(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it has shards, and says that nothing there is unsettled."""
        assert process.poll() is None, self.log()
        found = self.consuming.store.query(f"select detail from relevo_process where pid = {process.pid}")
        return bool(found and found[0][0]["lag"]) and not any(found[0][0]["lag"].values())

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        assert process.wait(40) == 0, self.log()

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)


BATCH: dict[str, dict[str, Any]] = {
    KAFKA: {},
    RABBITMQ: {"queues": 1, "prefetch": 600},  # all at once
}


@pytest.fixture(params=[KAFKA, RABBITMQ])
async def members(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Members]:
    consuming = await open_consuming(request.param, tmp_path, request, **BATCH[request.param])
    started = Members(consuming, tmp_path)
    try:
        yield started
    finally:
        started.end()


async def test_killed_between_commit_and_acknowledgement(members: Members) -> None:
    """FAILURES row 32. Killed after a commit, before its acknowledgement: the message comes again, is recognised, and
    has no second effect; nothing is lost, and the key's order holds."""
    consuming, store = members.consuming, members.consuming.store
    await consuming.publish(*(consuming.order(number, "one") for number in range(12)))
    first = members.start(probe="consumer.committed=kill:5")
    assert first.wait(60) == -signal.SIGKILL, members.log()
    assert "probe consumer.committed: SIGKILL" in members.log()
    assert effects(store)
    second = members.start()
    eventually_sync(lambda: members.idle(second), what="all came again and is settled", timeout_s=60)
    members.stop(second)
    assert set(inbox(store).values()) == {"done"} and len(inbox(store)) == 12
    assert effects(store) == list(range(12))
    assert held(store) == []


async def test_a_message_that_kills_its_process_parks_alone(members: Members) -> None:
    """FAILURES row 33. 500 messages of 500 keys in flight, one of which kills its process whenever it is handled: it
    parks after its attempts, each of the other 499 has one effect, and no attempt of theirs was counted."""
    consuming, store = members.consuming, members.consuming.store
    count, killer = 500, 250
    await consuming.publish(*(consuming.order(number, f"k{number}") for number in range(count)))
    deaths = 0
    while deaths < 10:
        process = members.start(killer=killer)
        eventually_sync(
            lambda running=process: running.poll() is not None or held(store) != [],
            what="the process died, or the key is parked",
            timeout_s=60,
        )
        if held(store):
            break
        assert process.wait(10) == -signal.SIGKILL, members.log()
        deaths += 1
    eventually_sync(lambda: len(effects(store)) >= count - 1, what="the neighbours' effects", timeout_s=60)
    members.stop(process)
    assert sorted(effects(store)) == [number for number in range(count) if number != killer]
    [(state, reason, error_type, attempts)] = held(store)
    assert (state, error_type, attempts) == ("parked", "ProcessDied", 2) and "killed its process 2 times" in reason
    assert deaths == 3  # once beside the others, then alone for each of its two attempts
    assert queue(store) == [killer]
    assert store.query("select distinct what from effect") == [("1",)], "a neighbour's death was counted"


async def test_order_over_many_deaths_on_rabbitmq(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two processes compete for two queues of 400 messages of eight keys, and one of them is killed six times in the
    middle, each time with its hands full: everything has one effect, in the order of its key."""
    options = {"queues": 2, "prefetch": 100, "member_timeout_s": 1.0}
    consuming = await open_consuming(RABBITMQ, tmp_path, request, **options)
    store, count = consuming.store, 400
    members = Members(consuming, tmp_path)
    await consuming.publish(*(consuming.order(number, f"k{number % 8}") for number in range(count)))
    try:
        for death in range(6):
            process = members.start(probe=f"consumer.handled=kill:{15 + 7 * death}")
            assert process.wait(60) == -signal.SIGKILL, members.log()
        last = [members.start(), members.start()]
        eventually_sync(lambda: len(inbox(store)) >= count, what="all effects", timeout_s=90)
        for process in last:
            eventually_sync(lambda process=process: members.idle(process), what="all is settled", timeout_s=60)
            members.stop(process)
    finally:
        members.end()
    found = effects(store)
    assert sorted(found) == list(range(count))
    for key in range(8):
        assert [number for number in found if number % 8 == key] == list(range(key, count, 8))
    assert held(store) == []

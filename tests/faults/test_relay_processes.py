"""The real ``relevo relay`` as a process on real databases and the embedded broker: killed with SIGKILL at named
points, frozen with SIGSTOP beyond its lease, stopped under load."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.brokers import broker_for
from relevo.message import Message
from tests.support.cli import environment
from tests.support.relays import Store
from tests.support.waiting import FROZEN_ON_SQLITE, eventually, eventually_sync

LEASE_S = 1.5
TOPIC = "shop.order"


class Relays:
    """Starts relay processes on one store and one embedded broker, and ends what is left."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.broker_url = f"embedded:{folder / 'broker.db'}"
        self.folder = folder
        self.config = folder / "relevo.toml"
        self.config.write_text(
            f'[database]\nurl = "{store.url}"\n[broker]\nurl = "{self.broker_url}"\n'
            f"[relay]\nlease_s = {LEASE_S}\nsend_timeout_s = 0.5\nbatch_max = 50\n"
        )
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, probe: str | None = None) -> subprocess.Popen[bytes]:
        log = self.log(len(self.processes)).open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "relevo", "--config", str(self.config), "relay"],
            cwd=self.folder,
            env=environment({"RELEVO_PROBE": probe} if probe else None),
            stdout=log,
            stderr=log,
        )
        log.close()
        self.processes.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.folder / f"relay{number}.log"

    def owners(self) -> dict[str, int]:
        rows = self.store.query("select holder, count(*) from relevo_lane where holder is not null group by holder")
        return {str(holder): count for holder, count in rows}

    async def on_the_wire(self) -> list[Message]:
        """Everything in the broker, in the order of each shard."""
        subscription = await broker_for(self.broker_url).subscribe("reader", [TOPIC])
        found: list[Message] = []
        try:

            async def read() -> bool:
                deliveries = await subscription.take(1000, 0.3)
                found.extend(delivery.message for delivery in deliveries)
                return bool(found) and not deliveries

            await eventually(read, what="everything was read")
        finally:
            await subscription.aclose()
        return found

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def relays(store: Store, tmp_path: Path) -> Iterator[Relays]:
    started = Relays(store, tmp_path)
    try:
        yield started
    finally:
        started.end()


def in_order(messages: list[Message], count: int, keys: int) -> int:
    """Assert that the first copies are complete and in order per key; how many were repeats."""
    seen: dict[bytes, list[int]] = {}
    ids = set()
    for message in messages:
        if message.event_id not in ids:
            ids.add(message.event_id)
            seen.setdefault(message.key or b"", []).append(int(message.payload or b""))
    assert len(ids) == count
    for key in range(keys):
        assert seen[b"k%d" % key] == list(range(key, count, keys))
    return len(messages) - len(ids)


@pytest.mark.parametrize(
    ("probe", "repeats"),
    [
        ("relay.acquired", False),
        ("relay.taken", None),
        ("relay.sending", None),
        ("relay.confirmed", True),
        ("relay.settled", None),
    ],
)
async def test_a_relay_killed_at_a_named_point_loses_and_swaps_nothing(
    relays: Relays, probe: str, repeats: bool | None
) -> None:
    """FAILURES row 14, HARD 24: killed exactly there; the next relay goes on; what repeats is what the point explains:
    after ``confirmed`` always something, after ``acquired`` nothing, else at most the page before, still being settled.
    """
    relays.store.fill(400, keys=8)
    visit = 1 if probe == "relay.acquired" else 3
    first = relays.start(f"{probe}=kill:{visit}")
    eventually_sync(lambda: first.poll() is not None, what="the relay met its probe")
    assert first.returncode == -signal.SIGKILL
    assert f"probe {probe}: SIGKILL" in relays.log(0).read_text()
    assert relays.store.unsettled() > 0
    relays.start()
    await eventually(lambda: relays.store.unsettled() == 0, what="the next relay finished")
    repeated = in_order(await relays.on_the_wire(), 400, 8)
    if repeats is not None:
        assert bool(repeated) == repeats
    assert repeated <= 100  # at most the page with the broker and the one being settled


async def test_a_relay_killed_while_it_hands_lanes_over(relays: Relays) -> None:
    """Killed right after it gave lanes to a relay that joined: nothing is lost, nobody waits for more than a lease."""
    relays.store.fill(200, keys=8)
    first = relays.start("relay.released=kill:1")
    eventually_sync(lambda: relays.store.unsettled() == 0, what="the first relay works")
    relays.start()
    eventually_sync(lambda: first.poll() is not None, what="it handed over")
    assert first.returncode == -signal.SIGKILL
    relays.store.fill(200, keys=8, start=200)
    await eventually(lambda: relays.store.unsettled() == 0, what="the second relay has all lanes")
    assert in_order(await relays.on_the_wire(), 400, 8) == 0


async def test_a_relay_frozen_beyond_its_lease_changes_nothing(relays: Relays) -> None:
    """FAILURES row 11: SIGSTOP after the broker confirmed; B takes over and settles; SIGCONT: A's settle is refused,
    and not one row that B settled changes."""
    if not relays.store.is_postgres:
        pytest.skip(FROZEN_ON_SQLITE)
    # One page: nothing is read ahead or settled beside it.
    relays.store.fill(40, keys=8)
    frozen = relays.start("relay.confirmed=freeze:1")
    eventually_sync(lambda: "SIGSTOP" in relays.log(0).read_text(), what="the relay froze itself")
    assert _state(frozen.pid) == "T"
    (holder,) = relays.owners()
    relays.start()
    eventually_sync(lambda: relays.store.unsettled() == 0, what="B took over and finished")
    assert holder not in relays.owners()
    before = relays.store.query("select seq, settled_at, outcome from relevo_outbox order by seq")
    frozen.send_signal(signal.SIGCONT)
    eventually_sync(lambda: "to another relay" in relays.log(0).read_text(), what="A noticed")
    relays.store.fill(100, keys=4, start=40)
    eventually_sync(lambda: relays.store.unsettled() == 0, what="both go on")
    after = relays.store.query("select seq, settled_at, outcome from relevo_outbox where seq <= 40 order by seq")
    assert after == before
    assert frozen.poll() is None


async def test_sigterm_under_load_gives_the_lanes_back_at_once_and_repeats_nothing(relays: Relays) -> None:
    """FAILURES row 12: clean stops while events flow: exit code 0, no lane left behind, zero duplicates."""
    relays.store.fill(300, keys=8)
    for number in range(3):
        process = relays.start()
        eventually_sync(lambda: "relay ready" in relays.log(number).read_text(), what="ready")  # noqa: B023
        relays.store.fill(300, keys=8, start=300 * (number + 1))
        process.terminate()
        assert process.wait(20) == 0
        assert relays.owners() == {}
    relays.start()
    await eventually(lambda: relays.store.unsettled() == 0, what="all settled")
    assert _repeats(await relays.on_the_wire()) == 0


async def test_two_relays_take_over_from_each_other_all_the_time(relays: Relays) -> None:
    """FAILURES rows 9 and 14: relays are killed in turn while events flow; everything arrives in order per key."""
    relays.start()
    for number in range(4):
        relays.store.fill(200, keys=8, start=200 * number)
        following = relays.start()
        eventually_sync(lambda: following.poll() is None and len(relays.owners()) == 2, what="both own lanes")  # noqa: B023
        relays.processes[-2].kill()
        relays.processes[-2].wait()
    await eventually(lambda: relays.store.unsettled() == 0, what="all settled")
    in_order(await relays.on_the_wire(), 800, 8)


def _repeats(messages: list[Message]) -> int:
    return len(messages) - len({message.event_id for message in messages})


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()[:1]


if os.name != "posix":  # pragma: no cover - SIGSTOP and SIGKILL are POSIX
    pytest.skip("signals of these tests are POSIX", allow_module_level=True)

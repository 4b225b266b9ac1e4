"""The real ``relevo relay`` as a process on every stack: killed with SIGKILL at named points, frozen with SIGSTOP
beyond its lease, stopped under load."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.freezing import state
from tests.support.relay_processes import Relays, under_way
from tests.support.stacks import EMBEDDED, STACKS, Stack, in_order
from tests.support.waiting import FROZEN_ON_SQLITE, eventually, eventually_sync


@pytest.fixture
async def relays(stack: Stack, tmp_path: Path) -> AsyncIterator[Relays]:
    started = Relays(stack, tmp_path)
    await started.open()
    try:
        yield started
    finally:
        started.end()


POINTS = {
    "relay.acquired": False,
    "relay.taken": None,
    "relay.sending": None,
    "relay.confirmed": True,
    "relay.settled": None,
}
"""Whether what was sent before is sent again."""


def often(stack: str, probe: str) -> bool:
    """Where the broker makes no difference, its other stacks are for the soak."""
    return stack == EMBEDDED or probe == "relay.confirmed"


@pytest.mark.parametrize(
    ("stack", "probe"),
    [
        pytest.param(stack, probe, marks=[] if often(stack, probe) else pytest.mark.soak)
        for stack in STACKS
        for probe in POINTS
    ],
    indirect=["stack"],
)
async def test_a_relay_killed_at_a_named_point_loses_and_swaps_nothing(relays: Relays, probe: str) -> None:
    """FAILURES row 14, HARD 24: killed exactly there; the next relay goes on; what repeats is what the point explains:
    after ``confirmed`` always something, after ``acquired`` nothing, else at most what was under way.
    """
    repeats = POINTS[probe]
    relays.fill(400, keys=8)
    # The first settlement is of the first page; the next may be of all the others.
    visit = 1 if probe in ("relay.acquired", "relay.settled") else 3
    first = relays.start(f"{probe}=kill:{visit}")
    eventually_sync(lambda: first.poll() is not None, what="the relay met its probe")
    assert first.returncode == -signal.SIGKILL
    assert f"probe {probe}: SIGKILL" in relays.log(0).read_text()
    assert relays.store.unsettled() > 0
    relays.start()
    await eventually(lambda: relays.store.unsettled() == 0, what="the next relay finished")
    repeated = in_order(await relays.on_the_wire(400), 400, 8)
    if repeats is not None:
        assert bool(repeated) == repeats
    assert repeated <= under_way(visit)


async def test_a_relay_killed_while_it_hands_lanes_over(relays: Relays) -> None:
    """Killed right after it gave lanes to a relay that joined: nothing is lost, nobody waits for more than a lease."""
    await relays.open(lease_s=9.0)  # a confirmation is waited for on a slow machine too
    relays.fill(200, keys=8)
    first = relays.start("relay.released=kill:1")
    eventually_sync(lambda: relays.store.unsettled() == 0, what="the first relay works")
    relays.start()
    eventually_sync(lambda: first.poll() is not None, what="it handed over")
    assert first.returncode == -signal.SIGKILL
    relays.fill(200, keys=8, start=200)
    await eventually(lambda: relays.store.unsettled() == 0, what="the second relay has all lanes", timeout_s=60)
    assert in_order(await relays.on_the_wire(400), 400, 8) == 0


async def test_a_relay_frozen_beyond_its_lease_changes_nothing(relays: Relays) -> None:
    """FAILURES row 11: SIGSTOP after the broker confirmed; B takes over and settles; SIGCONT: A's settle is refused,
    and not one row that B settled changes."""
    if relays.stack.name == EMBEDDED:
        pytest.skip(FROZEN_ON_SQLITE)
    await relays.open(lease_s=15.0)  # a confirmation is waited for on a slow machine too
    # One page: nothing is read ahead or settled beside it.
    relays.fill(40, keys=8)
    frozen = relays.start("relay.confirmed=freeze:1")
    eventually_sync(lambda: "SIGSTOP" in relays.log(0).read_text(), what="the relay froze itself")
    eventually_sync(lambda: state(frozen.pid) == "T", what="it is frozen")
    (holder,) = relays.owners()
    relays.start()
    eventually_sync(lambda: relays.store.unsettled() == 0, what="B took over and finished", timeout_s=60)
    assert holder not in relays.owners()
    before = relays.store.query("select seq, settled_at, outcome from relevo_outbox order by seq")
    frozen.send_signal(signal.SIGCONT)
    eventually_sync(lambda: "to another relay" in relays.log(0).read_text(), what="A noticed")
    relays.fill(100, keys=8, start=40)
    eventually_sync(lambda: relays.store.unsettled() == 0, what="both go on")
    after = relays.store.query("select seq, settled_at, outcome from relevo_outbox where seq <= 40 order by seq")
    assert after == before
    assert frozen.poll() is None
    assert in_order(await relays.on_the_wire(140), 140, 8) == 40  # B could not know that the broker had A's page


async def test_sigterm_under_load_gives_the_lanes_back_at_once_and_repeats_nothing(relays: Relays) -> None:
    """FAILURES row 12: clean stops while events flow: exit code 0, no lane left behind, zero duplicates. The
    time-out is one that no slow machine reaches: what is sent again for want of a confirmation is another matter."""
    await relays.open(lease_s=30.0)
    relays.fill(120, keys=8)
    for number in range(3):
        process = relays.start()
        eventually_sync(lambda: "relay ready" in relays.log(number).read_text(), what="ready")  # noqa: B023
        relays.fill(120, keys=8, start=120 * (number + 1))
        process.terminate()
        assert process.wait(20) == 0
        assert relays.owners() == {}
    relays.start()
    await eventually(lambda: relays.store.unsettled() == 0, what="all settled")
    assert in_order(await relays.on_the_wire(480), 480, 8) == 0


async def test_two_relays_take_over_from_each_other_all_the_time(relays: Relays) -> None:
    """FAILURES rows 9 and 14: relays are killed in turn while events flow; everything arrives in order per key."""
    relays.start()
    for number in range(4):
        relays.fill(200, keys=8, start=200 * number)
        following = relays.start()
        eventually_sync(lambda: following.poll() is None and len(relays.owners()) == 2, what="both own lanes")  # noqa: B023
        relays.processes[-2].kill()
        relays.processes[-2].wait()
    await eventually(lambda: relays.store.unsettled() == 0, what="all settled")
    in_order(await relays.on_the_wire(800), 800, 8)


if os.name != "posix":  # pragma: no cover - SIGSTOP and SIGKILL are POSIX
    pytest.skip("signals of these tests are POSIX", allow_module_level=True)

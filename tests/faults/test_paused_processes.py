"""A relay that is killed while a destination is paused: real processes, on every stack."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.relay_processes import PAGE, Relays
from tests.support.stacks import EMBEDDED, KAFKA, RABBITMQ, Stack, in_order
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("stack", "when"),
    [
        (EMBEDDED, "idle"),
        (KAFKA, "busy"),
        (RABBITMQ, "idle"),
        pytest.param(EMBEDDED, "busy", marks=pytest.mark.soak),
        pytest.param(KAFKA, "idle", marks=pytest.mark.soak),
        pytest.param(RABBITMQ, "busy", marks=pytest.mark.soak),
    ],
    indirect=["stack"],
)
async def test_killed_during_a_pause(stack: Stack, tmp_path: Path, when: str) -> None:
    """FAILURES row 17. Two destinations share their lanes, one is paused with a backlog behind it, the other flows; the
    relay is killed, with nothing under way or between the broker's confirmation and its bookkeeping. After the restart
    nothing of the paused destination was sent, nothing of the other is sent again but what was under way; resumed,
    everything arrives in order."""
    relays = Relays(stack, tmp_path)
    slow, fast = f"{stack.topic}.slow", f"{stack.topic}.fast"
    try:
        await relays.open(slow, fast, lease_s=15.0)  # what is not confirmed in time would be a page of its own
        # The third page with something in it is the second one of the backlog below.
        first = relays.start("relay.confirmed=kill:3" if when == "busy" else None)
        relays.fill(PAGE // 2, topic=slow)
        await settled(relays, slow)
        relays.operator("pause", "destination", slow, "--why", "a test", "--actor", "ann@desk")
        await eventually(lambda: seen(relays), what="the relay knows of the pause", timeout_s=40)
        relays.fill(400, topic=slow, start=PAGE // 2)
        relays.fill(4 * PAGE, topic=fast)
        if when == "idle":
            await settled(relays, fast)
            first.kill()
        await eventually(lambda: first.poll() is not None, what="the relay died", timeout_s=40)
        assert first.wait() == -signal.SIGKILL
        assert (relays.unsettled(fast) > 0) == (when == "busy")
        relays.start()
        relays.fill(2 * PAGE, topic=fast, start=4 * PAGE)
        await settled(relays, fast)
        assert relays.unsettled(slow) == 400
        repeats = in_order(await relays.on_the_wire(6 * PAGE, fast), 6 * PAGE, 8)
        assert repeats == 0 if when == "idle" else 0 < repeats <= 4 * PAGE
        relays.operator("resume", "destination", slow)
        await settled(relays, slow)
        assert in_order(await relays.on_the_wire(400 + PAGE // 2, slow), 400 + PAGE // 2, 8) == 0
    finally:
        relays.end()


async def settled(relays: Relays, topic: str) -> None:
    await eventually(lambda: relays.unsettled(topic) == 0, what=f"{topic} is settled", timeout_s=60, every_s=0.05)


def seen(relays: Relays) -> bool:
    """The relay tells in its row what it leaves alone; that is renewed three times per lease."""
    rows = relays.store.query("select detail from relevo_process where role = 'relay'")
    return any("ann@desk" in str(detail) for (detail,) in rows)

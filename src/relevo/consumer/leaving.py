"""How a consumer stops: everything is given back in good order, and a peer that does not answer is left."""

from __future__ import annotations

import asyncio
import logging

from relevo.consumer.intake import Intake
from relevo.consumer.shared import Shared
from relevo.ports.broker import Subscription
from relevo.runtime.closing import MOMENT_S, within
from relevo.storage import processes
from relevo.tasks import Kept

log = logging.getLogger("relevo.consumer")

GIVE_BACK: float = 0.8
"""Of the time to stop: what handlers get. The rest is for giving back."""
LEAVE_S = 2.0


async def leave(
    shared: Shared,
    subscription: Subscription,
    intake: Intake,
    tasks: tuple[asyncio.Task[None], Kept, Kept],
    *,
    stop_timeout_s: float,
) -> None:
    """Give everything back. ``stop_timeout_s``: 0 after a cancellation, then no handler is waited for."""
    taking, draining, beating = tasks
    timeout_s = stop_timeout_s * GIVE_BACK
    if not timeout_s:
        taking.cancel()
    end = asyncio.get_running_loop().time() + stop_timeout_s * (1 + GIVE_BACK) / 2
    await asyncio.wait([taking], timeout=max(1.0, timeout_s / 4 if shared.database.reason is None else 0.0))
    taking.cancel()
    await intake.finish(timeout_s)
    if shared.database.reason is not None or not timeout_s:
        draining.cancel()
    await asyncio.wait([draining.over], timeout=max(2.0, timeout_s))
    draining.cancel()
    beating.cancel()
    await asyncio.wait([taking, draining.over, beating.over], timeout=MOMENT_S)
    what = f"consumer {shared.name}"  # a stop is a stop: what the broker is not told comes again
    left_s = max(LEAVE_S, end - asyncio.get_running_loop().time())
    await within(f"{what}: settling what was handled", subscription.flush, left_s / 2)
    await within(f"{what}: leaving the broker", subscription.aclose, left_s / 2)
    try:
        async with asyncio.timeout(LEAVE_S):
            if shared.database.reason is None:
                await shared.journal.flush()
                await shared.database.run(lambda: processes.leave(shared.owner))
    except TimeoutError:
        log.info("consumer %s: its process row is left to expire", shared.name)
    log.info("consumer %s: stopped", shared.name)

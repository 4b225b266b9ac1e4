"""What a relay does beside carrying messages: each chore is a task of its own that never ends the relay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from relevo.errors import LostOwnershipError
from relevo.policy import Backoff
from relevo.runtime.classify import is_transient

log = logging.getLogger("relevo.relay")

OUTAGE = Backoff(attempts=1, base=timedelta(milliseconds=100), cap=timedelta(seconds=2))
"""Between tries while the database is away: every chore asks by itself, and messages need none of them."""
TROUBLE_S = 30.0
"""How long to leave a chore alone that failed for another reason than an outage (a missing right)."""


async def keep_doing(name: str, turn: Callable[[], Awaitable[float]]) -> None:
    """Call ``turn`` again and again, after as many seconds as it says. An outage is waited out with capped backoff;
    anything else is logged when it is new, and tried again later: messages go on meanwhile."""
    failures, said = 0, ""
    while True:
        try:
            wait_s = await turn()
            failures, said = 0, ""
        except Exception as error:
            if isinstance(error, LostOwnershipError) or is_transient(error):
                failures += 1
                log.debug("%s: %s", name, error)
                await asyncio.sleep(OUTAGE.delay_s(failures))
                continue
            wait_s = TROUBLE_S
            if str(error) != said:
                said = str(error)
                log.error("%s does not work, and is tried again every %.0f s: %s", name, TROUBLE_S, error)
                log.debug("%s", name, exc_info=error)
        await asyncio.sleep(wait_s)

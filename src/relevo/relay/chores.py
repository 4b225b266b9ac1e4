"""What a relay does beside carrying messages: each chore is a task of its own that never ends the relay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from relevo.errors import LostOwnershipError
from relevo.policy import PROBE_BACKOFF, Backoff
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.patience import Patience, stays
from relevo.runtime.pulse import Pulse

log = logging.getLogger("relevo.relay")

OUTAGE: Final = Backoff(attempts=1, base=timedelta(milliseconds=100), cap=timedelta(seconds=2))
"""Between tries while the database is away: every chore asks by itself, and messages need none of them."""
TROUBLE: Final = Backoff(attempts=1, base=timedelta(seconds=1), cap=timedelta(seconds=30))
"""After an error that does not pass by itself: a missing right, a value, a bug."""


class Chore:
    """Calls ``turn`` again and again, after as many seconds as it says. Every error it raises is logged and waited out:
    messages go on meanwhile. ``problem``: why it does not work, and since when."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], Awaitable[float]],
        pulse: Pulse | None = None,
        *,
        first_s: float = 0.0,
        urgent: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """``first_s``: until the first turn. ``urgent``: tried again within a quarter of a second, after any error."""
        self.name = name
        self._turn = turn
        self._pulse = pulse
        self._first_s = first_s
        self._urgent = urgent
        self._outage = Patience(name, log, clock=clock, backoff=PROBE_BACKOFF if urgent else OUTAGE)
        self._trouble = Patience(name, log, clock=clock, backoff=TROUBLE, trouble=self._outage.trouble)

    @property
    def problem(self) -> str | None:
        return self._outage.trouble.text

    def forgive(self) -> None:
        """The database answers again: an outage that this chore saw is over, unless it sees one now."""
        self._outage.trouble.end()

    async def run(self) -> None:
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = await self._once()

    async def _once(self) -> float:
        """One turn; the seconds until the next."""
        try:
            wait_s = await self._turn()
        except LostOwnershipError as error:
            log.debug("%s: %s", self.name, error)
            return OUTAGE.delay_s(1)
        except Exception as error:  # noqa: BLE001 - any error is tried again
            patience = self._trouble if stays(error) and not self._urgent else self._outage
            return patience.failed(error)
        self._outage.worked()
        self._trouble.worked()
        if self._pulse is not None:
            self._pulse.beat(self.name)
        return wait_s

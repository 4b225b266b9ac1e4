"""Writing down what is known of an act: before it begins, that it is sent; after it, what came of it.

Only this process knows the latter, so it writes it again after every error. While the process cannot write something
down it is not ready: it begins no act, or it would lose outcomes if it ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from relevo.policy import Backoff
from relevo.ports.database import Database
from relevo.runtime.patience import Patience, of_data
from relevo.script import Script
from relevo.storage import effecting
from relevo.storage.effecting import Claim

TELL: Final = Backoff(attempts=1, base=timedelta(milliseconds=200), cap=timedelta(seconds=2))
"""Between attempts to write something down."""

log = logging.getLogger("relevo.effects")


class Recorder:
    """For all acts of one process, on one event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._begins = Patience("effects: writing down that an act begins", log, backoff=TELL)
        self._begin_at = 0.0
        self._waiting: set[Patience] = set()

    @property
    def problem(self) -> str | None:
        """What cannot be written down, and since when."""
        if (text := self._begins.trouble.text) is not None:
            return f"that an act begins cannot be written down, so none does: {text}"
        for waiting in self._waiting:
            return f"outcomes of {len(self._waiting)} acts cannot be written down: {waiting.trouble.text}"
        return None

    async def sent(self, claim: Claim) -> int | None:
        """The number of the attempt that may begin now, ``None`` if another process has the effect. Raises the
        database's error: the act has not begun then, even if the database committed that it does."""
        try:
            attempt = await self.database.run(effecting.sent(claim))
        except Exception as error:
            now = time.monotonic()
            if now >= self._begin_at:  # of several that fail together the first counts
                self._begin_at = now + self._begins.failed(error)
            raise
        self._begins.worked()
        return attempt

    def begin_in_s(self) -> float:
        """Seconds until acts may be claimed again, after one could not begin; 0: now."""
        return max(0.0, self._begin_at - time.monotonic()) if self._begins.trouble.text is not None else 0.0

    def nothing_begins(self) -> None:
        """No act is due here, so that none waits to begin: another process may have performed the one that failed."""
        self._begins.worked()

    async def tell(
        self,
        claim: Claim,
        what: str,
        script: Callable[[], Script[bool]],
        plain: Callable[[], Script[bool]] | None = None,
    ) -> bool:
        """Write down what only this process knows, again after every error. ``plain``: the same without what the
        database may refuse."""
        waiting = Patience(f"effect {claim.name}/{claim.key}: {what} cannot be written down yet: it", log, backoff=TELL)
        try:
            while True:
                try:
                    return await self.database.run(script())
                except Exception as error:  # noqa: BLE001 - no other process can write it down
                    if plain is not None and of_data(error):
                        script = plain
                    self._waiting.add(waiting)
                    await asyncio.sleep(waiting.failed(error))
        finally:
            self._waiting.discard(waiting)

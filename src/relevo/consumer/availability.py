"""The database's availability as one consumer sees it: down pauses everything, a probe finds out when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from relevo.errors import RelevoError
from relevo.policy import PROBE_BACKOFF
from relevo.ports.database import Database, Dialect
from relevo.runtime.classify import is_transient
from relevo.runtime.trouble import Trouble
from relevo.script import Script
from relevo.storage import inboxing

log = logging.getLogger("relevo.consumer")
T = TypeVar("T")

ANSWER_S = 1.0
"""How long an answer to the smallest question may take."""


class Availability:
    """Used from one event loop. ``on_change`` gets the reason when it goes down, and ``None`` when it is back.

    ``idle_timeout_s``: a process that freezes inside a bookkeeping transaction loses its locks after that long.
    An outage spends no attempt and loses nothing: whoever needs the database waits in ``up`` and goes on by itself.
    """

    def __init__(
        self, database: Database, name: str, on_change: Callable[[str | None], None], *, idle_timeout_s: float
    ) -> None:
        self._database = database
        self._idle_timeout_s = idle_timeout_s
        self._name = name
        self._on_change = on_change
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._failures = 0
        self._prober: asyncio.Task[None] | None = None
        self._trouble = Trouble()

    @property
    def reason(self) -> str | None:
        """Why it is not available, while it is not."""
        return self._trouble.reason

    @property
    def problem(self) -> str | None:
        """The same with the time since when, for readiness."""
        return self._trouble.text

    async def up(self) -> None:
        """Wait until the database is believed to answer."""
        await self._is_up.wait()

    def worked(self) -> None:
        """A transaction committed: the next outage is probed from the shortest delay again."""
        self._failures = 0

    def down(self, reason: str) -> None:
        """Pause, and probe with capped, jittered backoff until it answers."""
        if not self._is_up.is_set():
            return
        self._is_up.clear()
        self._trouble.begin(reason)
        self._failures += 1
        log.warning(
            "consumer %s: the database is not available, so nothing is taken and no attempt is spent; it is probed and "
            "work resumes by itself (%s)",
            self._name,
            reason,
        )
        self._on_change(reason)
        self._prober = asyncio.create_task(self._probe())

    @property
    def dialect(self) -> Dialect:
        return self._database.dialect

    async def run(self, make: Callable[[], Script[T]], *, read_only: bool = False, single: bool = False) -> T:
        """Bookkeeping: run a script, again after an outage or a conflict, until it is done. ``make`` is called for each
        try. Raises what waiting cannot help. ``read_only`` and ``single``: of ``Database.run``."""
        idle_timeout_s = None if read_only or single else self._idle_timeout_s
        while True:
            await self.up()
            try:
                result = await self._database.run(
                    make(), read_only=read_only, single=single, idle_timeout_s=idle_timeout_s
                )
            except Exception as error:
                if isinstance(error, RelevoError):  # unreachable, or tables missing: say so, and wait
                    self.down(str(error))
                elif is_transient(error):
                    await asyncio.sleep(PROBE_BACKOFF.delay_s(1))
                else:
                    raise
                continue
            self.worked()
            return result

    async def answers(self) -> bool:
        """Whether it answers at once: ``down`` is for the caller to say."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._database.run(inboxing.identity(), read_only=True)
        except Exception:  # noqa: BLE001 - whatever it is, it is no answer
            return False
        return True

    async def aclose(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_BACKOFF.delay_s(self._failures))
            try:
                await self._database.run(inboxing.identity(), read_only=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is not back
                self._failures += 1
                self._trouble.begin(str(error))
                continue
            self._trouble.end()
            self._is_up.set()
            log.info("consumer %s: the database answers again; going on", self._name)
            self._on_change(None)
            return

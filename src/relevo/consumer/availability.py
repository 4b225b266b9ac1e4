"""The database's availability as one consumer sees it: down pauses everything, a probe finds out when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from relevo.errors import ConfigError, LostOwnershipError, ReadOnlyError, SchemaError, UnreachableError
from relevo.policy import PROBE_BACKOFF, Backoff
from relevo.ports.database import Database, Dialect
from relevo.runtime.closing import within
from relevo.runtime.patience import Patience, reason_of, stays
from relevo.runtime.trouble import Trouble
from relevo.script import Script
from relevo.storage import inboxing
from relevo.tasks import Kept, Tasks

log = logging.getLogger("relevo.consumer")
T = TypeVar("T")

LOOK_S = 2.0

ANSWER_S = 1.0
"""How long an answer to the smallest question may take."""
_AWAY = (UnreachableError, SchemaError, ConfigError)
_OTHERS = Backoff(attempts=1, base=timedelta(seconds=1), cap=timedelta(seconds=30))
"""Between tries of what fails for a reason of its own: a value, or a bug."""


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
        self.name = name
        self._on_change = on_change
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._failures = 0
        self._prober: Kept | None = None
        self._trouble = Trouble()
        self._relapsed = Trouble()
        self._failing: dict[object, str] = {}
        self._outage = Patience(f"consumer {name}: the database is not available, so nothing is taken: it", log)
        self._bookkeeping = Patience(f"consumer {name}: bookkeeping", log)
        self.tasks = Tasks(f"consumer {name}", log)

    @property
    def reason(self) -> str | None:
        """Why it is not available, while it is not."""
        return self._trouble.reason

    @property
    def problem(self) -> str | None:
        """The same with the time since when, for readiness; or what is tried again although the database answers."""
        return self._trouble.text or self._relapsed.text or next(iter(self._failing.values()), None)

    async def up(self) -> None:
        """Wait until the database is believed to answer."""
        await self._is_up.wait()

    def worked(self) -> None:
        """A transaction committed: the next outage is probed from the shortest delay again."""
        self._failures = 0
        self._relapsed.end()

    async def look(self) -> None:
        """Before a stop: an answer that does not come at once is an outage, and then nothing is waited for. (On SQLite
        it may stand behind a handler, which is to finish.)"""
        if self._is_up.is_set() and self.dialect == "postgresql":
            probe = partial(self._database.run, inboxing.identity(), read_only=True)
            if not await within(f"consumer {self.name}: a look at the database before leaving", probe, LOOK_S):
                self.down("the database does not answer at the stop")

    def down(self, reason: str, error: BaseException | None = None) -> None:
        """Pause, and probe with capped, jittered backoff until it answers."""
        if not self._is_up.is_set():
            return
        self._is_up.clear()
        self._trouble.begin(reason)
        if self._failures:
            self._relapsed.begin(reason)  # it answers the probe and fails the work
        self._failures += 1
        self._outage.say(error if error is not None else UnreachableError(reason))
        self._on_change(reason)
        self._prober = self.tasks.keep("probing the database", self._probe, may_end=self._is_up.is_set)

    @property
    def dialect(self) -> Dialect:
        return self._database.dialect

    async def run(self, make: Callable[[], Script[T]], *, read_only: bool = False, single: bool = False) -> T:
        """Bookkeeping: run a script, again after any error, until it is done. ``make`` is called for each try.
        ``LostOwnershipError`` alone is raised. ``read_only`` and ``single``: of ``Database.run``."""
        idle_timeout_s = None if read_only or single else self._idle_timeout_s
        mine, tries = object(), 0
        try:
            while True:
                await self.up()
                try:
                    result = await self._database.run(
                        make(), read_only=read_only, single=single, idle_timeout_s=idle_timeout_s
                    )
                except LostOwnershipError:
                    raise
                except _AWAY as error:  # unreachable, or tables missing: say so, and wait
                    self.down(reason_of(error), error)
                except Exception as error:  # noqa: BLE001 - any error is tried again
                    tries += 1
                    self._failing[mine] = reason_of(error)
                    self._bookkeeping.say(error)
                    await asyncio.sleep((_OTHERS if stays(error) else PROBE_BACKOFF).delay_s(tries))
                else:
                    self.worked()
                    return result
        finally:
            self._failing.pop(mine, None)

    async def once(self, script: Script[T]) -> T | None:
        """The result of a script that only reads, tried once; ``None`` where that failed."""
        try:
            return await self._database.run(script, read_only=True)
        except _AWAY as error:
            self.down(reason_of(error), error)
        except Exception as error:  # noqa: BLE001 - what is asked so is asked again
            self._bookkeeping.say(error)
        return None

    async def answers(self) -> bool:
        """Whether it answers at once: ``down`` is for the caller to say."""
        return await answered(self._database, inboxing.identity(), read_only=True)

    async def writes(self, consumer: str) -> bool:
        """Whether it takes a small write at once."""
        return await answered(self._database, inboxing.try_writing(consumer), read_only=False)

    async def aclose(self) -> None:
        await self.tasks.aclose()

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_BACKOFF.delay_s(self._failures))
            try:
                if not await self._database.run(inboxing.ready_to_write(), read_only=True):
                    raise ReadOnlyError("the database is read-only: a standby, or default_transaction_read_only")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is not back
                self._failures += 1
                self._trouble.begin(reason_of(error))
                self._outage.say(error)
                continue
            self._trouble.end()
            self._is_up.set()
            log.info("consumer %s: the database answers again; going on", self.name)
            self._on_change(None)
            return


async def answered(database: Database, script: Script[Any], *, read_only: bool) -> bool:
    """Whether ``script`` ends well within a moment."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await database.run(script, read_only=read_only)
    except Exception:  # noqa: BLE001 - any error means no answer
        return False
    return True

"""Handlers' own statements on connections that hang.

A handler's statement may take any time, so it has no clock. But where the server waits for the next statement while the
handler waits for the answer to the last one, the connection hangs: neither will ever come. The server is asked, on
another connection, about transactions of runs that take longer than the bound. It names a transaction by the number
that the inbox row was written with, which a pooler between does not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from relevo.clients.watch import LOOKS
from relevo.consumer.availability import Availability
from relevo.consumer.work import Progress
from relevo.storage import inboxing

log = logging.getLogger("relevo.consumer")

SEEN: Final = 3
"""Looks in a row that find both sides waiting, and the server's side unchanged: half of the bound."""


class Hangs:
    """Of one consumer. ``look`` is called four times per bound, and costs nothing while no run is older than that."""

    def __init__(self, database: Availability, answer_s: float) -> None:
        self._database = database
        self.answer_s, self._quiet_s = answer_s, answer_s / 2
        self._seen: dict[str, tuple[int, str]] = {}
        self._asking = False

    def look(self, runs: Iterable[tuple[float, Progress, Any]]) -> None:
        """``runs``: when each began, how far it got, and its unit."""
        due: dict[str, tuple[Progress, Any]] = {}
        for _, progress, unit in runs:
            looks = progress.watched.in_exempt
            xid = progress.xid
            if xid is None or looks < LOOKS or (looks % LOOKS and xid not in self._seen):
                continue
            if unit.waits(self._quiet_s):
                due[xid] = progress, unit
        if not due:
            self._seen.clear()
        elif not self._asking and self._database.reason is None:
            self._asking = True
            self._database.tasks.once("asking about handlers' statements that take long", self._ask(due))

    async def _ask(self, due: dict[str, tuple[Progress, Any]]) -> None:
        try:
            found = await self._database.once(inboxing.idle_since(sorted(due)))
            if found is not None:
                self._judge(due, found)
        finally:
            self._asking = False

    def _judge(self, due: dict[str, tuple[Progress, Any]], found: dict[str, str]) -> None:
        before, self._seen = self._seen, {}
        for xid, since in found.items():
            count, same = before.get(xid, (0, since))
            self._seen[xid] = (count + 1 if same == since else 1, since)
            progress, unit = due[xid]
            if self._seen[xid][0] < SEEN or progress.xid != xid or not progress.watched.in_exempt:
                continue
            if unit.waits(self._quiet_s) and unit.sever():
                del self._seen[xid]
                log.warning(
                    "consumer %s: the connection of a handler hangs: the handler waits for an answer, and the server "
                    "has sent it, or has lost the connection. The connection was ended; the message is tried again",
                    self._database.name,
                )

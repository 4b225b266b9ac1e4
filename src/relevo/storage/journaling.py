"""Scripts of the in-flight journal: what a consumer process took and did not settle yet.

Whoever takes a message next reads the journal in the same transaction that writes its own name there. A row of another
owner without an inbox row is a *suspect*: its process may have died of it, so it runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from relevo.ports.database import Dialect
from relevo.script import Ids, Script, Statement

NOBODY = UUID(int=0)
"""Owner of a message that was handed back in good order: not a suspect, but its attempts count."""


class Found(NamedTuple):
    """What the journal knew of a message just taken. ``done``: its inbox row exists."""

    suspect: bool
    attempts: int


def take(
    dialect: Dialect,
    consumer: str,
    owner: UUID,
    event_ids: Sequence[str],
    settled: Sequence[str],
    *,
    generation: int = 0,
) -> Script[dict[UUID, Found]]:
    """One write for one batch: forget ``settled``, write ``event_ids``, none of those, down as taken by ``owner``. On
    PostgreSQL one statement.

    Returns what was found of earlier runs; a healthy message is not in it.
    """
    ids, gone = Ids(sorted(set(event_ids))), Ids(sorted(set(settled)))
    of = {"consumer": consumer, "owner": str(owner)}
    if dialect == "postgresql":
        rows = yield Statement("journal.take", {**of, "settled": gone, "event_ids": ids, "generation": generation})
    else:
        if gone:
            yield from remove(consumer, owner, gone)
        rows = yield Statement("journal.found", {"consumer": consumer, "event_ids": ids, "generation": generation})
        yield Statement("journal.write", {**of, "event_ids": ids})
    found: dict[UUID, Found] = {}
    for event_id, last_owner, attempts, done in rows:
        suspect = not done and last_owner not in (str(owner), str(NOBODY))
        if suspect or attempts:
            found[UUID(event_id)] = Found(suspect, attempts)
    return found


def count(consumer: str, owner: UUID, event_id: UUID, attempts: int) -> Script[None]:
    """Write the attempts of a message *before* the attempt is made."""
    yield Statement(
        "journal.count",
        {"consumer": consumer, "owner": str(owner), "event_id": str(event_id), "attempts": attempts},
    )


def remove(consumer: str, owner: UUID, event_ids: Sequence[UUID | str]) -> Script[None]:
    """These are settled. Rows that somebody else took over stay."""
    ids = Ids(sorted({str(event_id) for event_id in event_ids}))
    yield Statement("journal.remove", {"consumer": consumer, "owner": str(owner), "event_ids": ids})


def hand_back(consumer: str, owner: UUID, event_ids: Sequence[UUID]) -> Script[None]:
    """These go back untouched: nobody's suspects; attempts already spent stay known."""
    ids = Ids(sorted({str(event_id) for event_id in event_ids}))
    params = {"consumer": consumer, "owner": str(owner), "event_ids": ids}
    yield Statement("journal.forget_fresh", params)
    yield Statement("journal.hand_back", params)


def purge(window_s: float, limit: int = 1_000) -> Script[int]:
    """Remove up to ``limit`` rows older than ``window_s`` seconds (a process that died after its last settle leaves
    some, and their messages never come again); returns how many."""
    rows = yield Statement("journal.purge", {"window_s": window_s, "limit": limit})
    return len(rows)

"""Finding the one message an act means."""

from __future__ import annotations

from relevo.errors import RefusedError
from relevo.ops import parked
from relevo.ports.database import Database
from relevo.storage.holding import KeyId
from relevo.storage.parking import Queued, Selection

_LOOK_MAX = 1_000_000


async def find(database: Database, selection: Selection) -> tuple[KeyId, Queued]:
    """The message with the selected id, or the first of the one key that is selected."""
    if selection.event_id is None:
        key, queue = await parked.show(database, selection, limit=1)
    else:
        key, queue = await parked.show(database, selection, limit=_LOOK_MAX)
    for queued in queue:
        if selection.event_id in (None, queued.message.event_id):
            return key.id, queued
    raise RefusedError("that message is not held any more: look again")

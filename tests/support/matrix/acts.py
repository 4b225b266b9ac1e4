"""The outward act of the matrix. In a module of its own: a consumer's process also performs the effects of the modules
that it imports, and now and then would do them all before the armed process gets one.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta
from typing import Any

from relevo import Backoff
from relevo.effects import Done, EffectRequest, NotDone, effect
from tests.support.ledger.app import begin, connect, execute


def _acts(request: EffectRequest) -> list[tuple[Any, ...]]:
    with contextlib.closing(connect(request.data["url"])) as connection:
        sql = "select event_id from ledger_act where event_id = :event_id"
        return execute(connection, sql, event_id=request.data["event_id"])


def look(request: EffectRequest) -> Done | NotDone:
    return Done(None) if _acts(request) else NotDone("not shipped")


@effect("ship", verify=look, timeout_s=4.0, retry=Backoff(attempts=20, base=timedelta(milliseconds=50)))
def ship(request: EffectRequest) -> None:
    """The outward act: a row in another table, on a connection of its own, that nothing guards against doubles. It ends
    within its time-out, as an act must: one that goes on behind it could be found undone and be done again."""
    with contextlib.closing(connect(request.data["url"])) as connection:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("pragma busy_timeout = 1000")
        begin(connection)
        values = {"event_id": request.data["event_id"], "key": str(request.idempotency_key)}
        execute(connection, "insert into ledger_act values (:event_id, :key)", **values)
        connection.commit()

"""A process that stands still inside a transaction of Relevo's loses its locks: every transaction, not only the
settling ones (HARD 2). Otherwise `skip locked` would pass its lanes, keys and duties by for ever."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest

from relevo.clients import database_for
from relevo.errors import UnreachableError
from relevo.relay.ownership import Ownership
from relevo.script import Script
from relevo.settings import DatabaseSettings
from relevo.storage import laning
from tests.support.schema import create_schema
from tests.support.waiting import eventually_sync

IDLE = "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"


def standing_still(url: str, script: Script[object]) -> Script[object]:
    """``script``, and before its transaction can be committed this process does nothing at all until the server has
    ended the session: the loop is blocked, as by SIGSTOP."""
    with psycopg.connect(url, autocommit=True) as other:

        def idle() -> int:
            row = other.execute(IDLE).fetchone()
            assert row is not None
            return int(row[0])

        result = yield from script
        assert idle() == 1
        eventually_sync(lambda: idle() == 0, what="the server ended the session", timeout_s=15)
    return result


@pytest.mark.parametrize("what", ["acquire", "renew"])
async def test_the_server_ends_a_transaction_that_stands_still(pg_database: str, what: str) -> None:
    """FAILURES row 11, HARD 2: frozen while lanes are acquired or renewed; afterwards another relay gets them."""
    create_schema(pg_database)
    database = database_for(DatabaseSettings(url=pg_database))
    me, lanes = uuid4(), dict.fromkeys(range(64), 0)
    identity = {"process_id": me, "name": "a", "host": "h", "pid": 1, "version": "0", "detail": {}}
    script = laning.acquire(me, lanes, 0.5) if what == "acquire" else laning.renew(identity, lanes, 0.5)
    with pytest.raises(UnreachableError):
        await database.run(standing_still(pg_database, script))  # type: ignore[arg-type]
    other = Ownership(database, uuid4(), "b", 64, 5.0, 1.0)
    await other.tick()
    assert len(other.lanes) == 64
    await database.aclose()

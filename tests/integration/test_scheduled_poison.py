"""One scheduled message that the outbox refuses is set aside with its reason; the others go on, in their order."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from relevo import Outbox
from relevo.clients import database_for
from relevo.ops.status import status
from relevo.relay.mover import Mover
from relevo.settings import Settings
from tests.support.events import OrderPlaced
from tests.support.relays import Store
from tests.support.waiting import eventually

BAD = {
    "bucket": "now(), gen_random_uuid(), 5000, 'event', 't', 'a.b', null",
    "kind": "now(), gen_random_uuid(), 5, 'evnt', 't', 'a.b', null",
    "headers": "now(), gen_random_uuid(), 5, 'event', 't', 'a.b', '[1]'",
}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("what", BAD)
async def test_a_bad_row_is_set_aside(pg_store: Store, what: str, place: str, caplog: pytest.LogCaptureFixture) -> None:
    add = f"insert into relevo_scheduled (due_at, event_id, bucket, kind, topic, type, headers) values ({BAD[what]})"
    for number in range(7):
        if number == {"first": 0, "middle": 3, "last": 6}[place]:
            pg_store.do(add)
        with pg_store.connect() as connection:
            Outbox().add(connection, OrderPlaced(number), after=timedelta(0))
    database = database_for(pg_store.settings)
    mover = Mover(database, uuid4(), 5.0, lambda: None)
    try:
        await eventually(lambda: moved(mover, 7), what="the others are moved")
        assert await mover.turn() > 0
        payloads = [row[0] for row in pg_store.query("select payload from relevo_outbox order by seq")]
        assert [json.loads(payload)["order_id"] for payload in payloads] == list(range(7))
        (aside,) = pg_store.query("select cast(event_id as text), extract(year from due_at) from relevo_scheduled")
        (audited,) = pg_store.query("select action, reason, detail from relevo_audit")
        assert audited[0] == "scheduled.aside" and "23514" in audited[1] and aside[0] in str(audited[2])
        assert aside[0] in caplog.text and UUID(aside[0])
        assert [record for record in caplog.records if record.levelno == logging.ERROR]
    finally:
        await database.aclose()


async def test_infinite_times_stop_nothing(pg_store: Store) -> None:
    for due in ("-infinity", "infinity"):
        pg_store.do(
            "insert into relevo_scheduled (due_at, event_id, bucket, topic, type)"
            f" values ('{due}', gen_random_uuid(), 5, 't', 'a.b')"
        )
    database = database_for(pg_store.settings)
    mover = Mover(database, uuid4(), 5.0, lambda: None)
    try:
        await eventually(lambda: moved(mover, 1), what="the one that is due is moved")
        assert pg_store.query("select due_at = 'infinity' from relevo_scheduled") == [(True,)]
        assert await status(database, Settings(database=pg_store.settings))
    finally:
        await database.aclose()


async def moved(mover: Mover, count: int) -> bool:
    await mover.turn()
    return mover.moved == count

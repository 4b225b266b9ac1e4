"""One row that cannot be removed, or not be archived, keeps nothing else: it stays, with a line in the log."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from relevo.clients import database_for
from relevo.ops import purge as purging
from relevo.relay.maintenance import Maintenance
from relevo.relay.partitions import OPEN, YOUNG
from relevo.settings import RetentionSettings, Settings
from tests.edges.test_bad_rows import by_hand
from tests.support.relays import Store


@pytest.mark.parametrize("by", ["an operator", "a relay"])
@pytest.mark.parametrize("then", ["delete", "archive"])
async def test_retention_goes_past_rows_it_cannot_remove(
    store: Store, then: Any, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the archive or a trigger of the application refuses stays, one line each; rows from the future are no reason
    to stop; what is odd in other tables spoils itself only."""
    store.fill(40)
    ago = "clock_timestamp() - interval '90 days'" if store.is_postgres else "1000"
    store.do(f"update relevo_outbox set settled_at = {ago}, created_at = {ago}, outcome = 'published'")
    future = "'9998-12-31'" if store.is_postgres else "9223372036854775807"
    store.do(f"update relevo_outbox set created_at = {future} where seq between 8 and 21")
    refuse(store, "relevo_outbox", "delete", "old.seq = 25")
    refuse(store, "relevo_archive", "insert", "new.seq in (1, 30, 40)")
    stays = {25} | ({1, 30, 40} if then == "archive" else set())
    odd_inbox, odd_rows = 0, set()
    if not store.is_postgres:
        odd_inbox = inbox_by_hand(store)
        odd_rows = {33, 34, 35}
        with by_hand(store) as connection:
            connection.execute("update relevo_outbox set settled_at = 'long ago' where seq = 33")
            connection.execute("update relevo_outbox set settled_at = x'00' where seq = 34")
            connection.execute("update relevo_outbox set created_at = 'soon', settled_at = 9e18 where seq = 35")
            connection.execute("update relevo_outbox set headers = '[', kind = 'x', topic = x'ff' where seq = 36")
    retention = RetentionSettings(pause_s=0.0, batch=7, then=then)
    settings = Settings(database=store.settings, retention=retention)
    database = database_for(store.settings)
    try:
        if by == "a relay":
            await Maintenance(database, uuid4(), settings, 5.0).turn()
        else:
            done = await purging.purge(database, settings, actor="me")
            assert done.outbox == 40 - len(stays) - len(odd_rows)
    finally:
        await database.aclose()
    assert {row[0] for row in store.query("select seq from relevo_outbox")} == stays | odd_rows
    assert len(store.query("select 1 from relevo_archive")) == (36 - len(odd_rows) if then == "archive" else 0)
    assert len(store.query("select 1 from relevo_inbox")) == odd_inbox
    assert store.query("select count(*) from relevo_duty where done_at is not null") == [(1 if by == "a relay" else 0,)]
    for seq in stays:
        assert f"row {seq} of the outbox stays" in caplog.text


async def test_a_partition_with_an_odd_row_keeps_no_other(pg_store: Store) -> None:
    """A time without end keeps its own partition, as messages settled lately do; the next one is dropped."""
    database = database_for(pg_store.settings)
    settings = Settings(database=pg_store.settings, retention=RetentionSettings(then="partitions", pause_s=0.0))
    old = "clock_timestamp() - interval '90 days'"
    try:
        for odd in ("settled_at = 'infinity'", "settled_at = '-infinity'", f"settled_at = {old}"):
            pg_store.fill(5)
            mine = "where outcome is null"
            pg_store.do(f"update relevo_outbox set created_at = {old}, settled_at = {old} {mine}")
            pg_store.do(f"update relevo_outbox set {odd} where seq = (select max(seq) from relevo_outbox)")
            pg_store.do(f"update relevo_outbox set outcome = 'published' {mine}")
            done = await purging.purge(database, settings, ["partitions"], actor="me")
            assert done.cut
        done = await purging.purge(database, settings, ["partitions"], actor="me")
    finally:
        await database.aclose()
    assert [fate.why for fate in done.partitions] == [YOUNG, OPEN, OPEN], done.partitions
    assert len(pg_store.query("select 1 from relevo_outbox")) == 5


def refuse(store: Store, table: str, what: str, when: str) -> None:
    """A trigger of the application's."""
    name = f"refuse_{table}"
    if store.is_postgres:
        store.do(
            f"create function {name}() returns trigger language plpgsql as "
            f"$$begin if {when} then raise exception 'not this one'; end if; return coalesce(new, old); end$$"
        )
        store.do(f"create trigger {name} before {what} on {table} for each row execute function {name}()")
    else:
        store.do(
            f"create trigger {name} before {what} on {table} when {when} begin select raise(abort, 'not this one'); end"
        )


def inbox_by_hand(store: Store) -> int:
    """Good rows between odd ones; returns how many are to stay."""
    rows: list[tuple[str, str, str, str]] = [
        ("'billing'", "'not a uuid'", "0", "1000"),
        ("'billing'", "x'00ff'", "0", "1000"),
        ("'billing'", "cast(x'78ff' as text)", "0", "1000"),
        ("'billing'", "'odd generation'", "'one'", "1000"),
        ("'billing'", "'odd time'", "0", "'soon'"),
        *(("'billing'", f"'{UUID(int=number)}'", "0", "1000") for number in range(20)),
        ("'shipping'", "'not a uuid'", "0", "1000"),
    ]
    with by_hand(store) as connection:
        for consumer, event_id, generation, processed_at in rows:
            connection.execute(
                "insert into relevo_inbox (consumer, event_id, generation, processed_at) "
                f"values ({consumer}, {event_id}, {generation}, {processed_at})"
            )
    return 1  # a time that is none is not old

"""Every kind of handle on both databases: the row is in the caller's transaction, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from relevo import Message, Outbox
from relevo.ids import bucket_of, uuid7
from tests.support.callers import POSTGRES, SQLITE, Open, rows, settle
from tests.support.events import ChargeCard, OrderPlaced
from tests.support.schema import create_schema

outbox = Outbox()
KINDS = [pytest.param("postgres", kind, id=f"postgres-{kind}") for kind in POSTGRES] + [
    pytest.param("sqlite", kind, id=f"sqlite-{kind}") for kind in SQLITE
]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Open]:
    """A fresh database with the tables, and how to open this kind of handle on it."""
    database, kind = request.param
    url = request.getfixturevalue("pg_database") if database == "postgres" else str(tmp_path / "app.db")
    create_schema(url)
    return url, (POSTGRES if database == "postgres" else SQLITE)[kind]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        parameters = [pytest.param(parameter.values, id=parameter.id) for parameter in KINDS]
        metafunc.parametrize("place", parameters, indirect=True)


async def test_commit_keeps_and_rollback_leaves_nothing(place: tuple[str, Open]) -> None:
    """Added, seen by nobody, rolled back: gone. Added again and committed: there, whole, once."""
    url, opened = place
    async with opened(url) as caller:
        await settle(outbox.add(caller.handle, OrderPlaced(1, "lost")))
        assert rows(url) == []
        await caller.rollback()
    async with opened(url) as caller:
        event_id = await settle(
            outbox.add(
                caller.handle,
                OrderPlaced(2, "ñandú"),
                headers={"tenant": "größe"},
                aggregate_type="order",
                aggregate_id=2,
                aggregate_version=2**40,
            )
        )
        assert await settle(outbox.find(caller.handle, event_id))
        assert not await settle(outbox.find(caller.handle, uuid7()))
        await caller.commit()
    (row,) = rows(url)
    assert UUID(str(row["event_id"])) == event_id
    assert (row["topic"], row["type"], row["kind"]) == ("shop.order", "shop.order.placed", "event")
    assert (row["key"], row["bucket"]) == (b"2", bucket_of(b"2", event_id))
    assert json.loads(row["payload"]) == {"order_id": 2, "note": "ñandú"}
    assert _headers(row) == {"tenant": "größe"}
    assert (row["aggregate_type"], row["aggregate_id"], row["aggregate_version"]) == ("order", "2", 2**40)


async def test_many_in_order(place: tuple[str, Open]) -> None:
    """1,203 events of both kinds in one call get ascending `seq` in the order given; ids come back in that order."""
    url, opened = place
    events = [ChargeCard(n) if n % 3 == 0 else OrderPlaced(n, n) for n in range(1203)]
    async with opened(url) as caller:
        ids = await settle(outbox.add_many(caller.handle, events))
        assert await settle(outbox.add_many(caller.handle, [])) == []
        await caller.commit()
    written = rows(url)
    assert [UUID(str(row["event_id"])) for row in written] == ids
    assert [row["key"] for row in written] == [str(n).encode() for n in range(1203)]
    assert [row["kind"] for row in written[:4]] == ["command", "event", "event", "command"]
    assert all(row["bucket"] == bucket_of(row["key"], ids[0]) for row in written)


async def test_payloads_and_keys_stay_distinct(place: tuple[str, Open]) -> None:
    """FAILURES row 20: payload None, empty, "null" and raw bytes; key None and empty: all read back as they were."""
    url, opened = place
    cases = [(payload, key) for payload in (None, b"", b"null", b"\x00\xff%s:name") for key in (None, b"", b"\x00k")]
    async with opened(url) as caller:
        for payload, key in cases:
            await settle(outbox.add_message(caller.handle, _raw(payload, key)))
        await caller.commit()
    assert [(row["payload"], row["key"]) for row in rows(url)] == cases
    assert {row["content_type"] for row in rows(url)} == {"application/octet-stream"}


def _raw(payload: bytes | None, key: bytes | None) -> Message:
    from datetime import UTC, datetime

    return Message(
        event_id=uuid7(),
        type="shop.raw",
        topic="shop",
        payload=payload,
        key=key,
        created_at=datetime.now(UTC),
        content_type="application/octet-stream",
    )


def _headers(row: dict[str, Any]) -> dict[str, str]:
    headers = row["headers"]
    found: dict[str, str] = json.loads(headers) if isinstance(headers, str) else headers
    return found

"""Messages to be sent later, over every kind of handle: written in the caller's transaction, due by the database's
clock, taken back by ``cancel``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from relevo import Outbox
from relevo.errors import RefusedError
from tests.support.callers import POSTGRES, SQLITE, Open, settle
from tests.support.events import OrderPlaced
from tests.support.relays import Store
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


async def test_in_the_transaction_and_cancelled_in_one(place: tuple[str, Open]) -> None:
    """Rolled back: nothing is scheduled. Committed: it is, and not in the outbox. Cancelled: gone, and only once."""
    url, opener = place
    async with opener(url) as caller:
        await settle(outbox.add(caller.handle, OrderPlaced(1), after=timedelta(hours=1)))
        await caller.rollback()
    async with opener(url) as caller:
        event_id = await settle(outbox.add(caller.handle, OrderPlaced(2, "now or never"), after=timedelta(hours=1)))
        await caller.commit()
    assert scheduled(url) == [str(event_id)]
    assert rows(url, "select 1 from relevo_outbox") == []
    async with opener(url) as caller:
        assert await settle(outbox.find(caller.handle, event_id))
        assert await settle(outbox.cancel(caller.handle, event_id)) is True
        await caller.rollback()
    assert scheduled(url) == [str(event_id)]
    async with opener(url) as caller:
        assert await settle(outbox.cancel(caller.handle, event_id)) is True
        assert await settle(outbox.cancel(caller.handle, event_id)) is False
        await caller.commit()
    assert scheduled(url) == []


async def test_a_moment_is_the_same_moment_in_every_zone(place: tuple[str, Open]) -> None:
    """FAILURES row 43: the night clocks go back in Berlin has 02:30 twice; the two are an hour apart in the database,
    and an hour given in another zone lands on the same moment."""
    url, opener = place
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=0)
    second = datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=1)
    tokyo = datetime(2026, 10, 25, 9, 30, 0, 123000, tzinfo=timezone(timedelta(hours=9)))
    async with opener(url) as caller:
        for number, moment in enumerate((first, second, tokyo)):
            await settle(outbox.add(caller.handle, OrderPlaced(number), at=moment))
        await caller.commit()
    found = [_utc(row[0]) for row in rows(url, "select due_at from relevo_scheduled order by schedule_id")]
    assert found == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 0, 30, 0, 123000, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"at": datetime(2026, 3, 29, 2, 30)}, "at has no time zone"),
        ({"at": datetime.now(UTC), "after": timedelta(1)}, "not both"),
        ({"after": timedelta(seconds=-1)}, "after must be"),
        ({"after": 3600}, "after must be a timedelta"),
        ({"at": "2026-03-29"}, "at must be a datetime"),
        ({"at": datetime(1969, 1, 1, tzinfo=UTC)}, "at must be from 1970"),
    ],
)
def test_what_could_mean_two_things_is_refused(options: dict[str, Any], says: str) -> None:
    """FAILURES row 43: a naive time is refused with a message that says what to write, before any database is asked."""
    with pytest.raises(RefusedError, match=says):
        outbox.add(None, OrderPlaced(1), **options)  # type: ignore[call-overload]


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    return Store(url if url.startswith("postgresql:") else f"sqlite:///{url}").query(sql)


def scheduled(url: str) -> list[str]:
    return [str(row[0]) for row in rows(url, "select event_id from relevo_scheduled")]


def _utc(value: Any) -> datetime:
    return value.astimezone(UTC) if isinstance(value, datetime) else datetime.fromtimestamp(value / 1000, UTC)

"""Stores for the tests that run on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import consumers
from tests.support.consuming import Consuming, open_consuming
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.stacks import KAFKA, RABBITMQ, STACKS, Stack, build
from tests.support.wal import wal, wal_server  # noqa: F401 - fixtures


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh database with Relevo's tables, once per dialect."""
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "app.db")
    return postgres_store(request.getfixturevalue("pg_database"))


@pytest.fixture
def pg_store(pg_database: str) -> Store:
    """A fresh PostgreSQL database with Relevo's tables."""
    return postgres_store(pg_database)


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Stack:
    """Every database with a broker it is used with."""
    return build(request.param, tmp_path, request)


@pytest.fixture(params=[KAFKA, RABBITMQ])
def pg_stack(request: pytest.FixtureRequest, tmp_path: Path) -> Stack:
    """PostgreSQL with each broker: for what cannot be on SQLite."""
    return build(request.param, tmp_path, request)


@pytest.fixture(params=STACKS)
async def consuming(request: pytest.FixtureRequest, tmp_path: Path) -> Consuming:
    """As ``stack``, open, with a consumer that the broker knows and a table for its effects."""
    return await open_consuming(request.param, tmp_path, request)


@pytest.fixture(params=["batches", "one by one"])
def batched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Consumers that handle several messages in one transaction, and consumers that never do: the effects are the same,
    only a handler may run once more than its attempts say, for a transaction that was rolled back."""
    together = request.param == "batches"
    monkeypatch.setattr(consumers, "BATCH", 100 if together else 1)
    return together

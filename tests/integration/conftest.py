"""Stores for the tests that run on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.relays import Store, postgres_store, sqlite_store


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

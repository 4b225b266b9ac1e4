"""What the relay's tests ask of the source ``mark``, asked of ``log``: the same tests, other stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_relay_conflicts import *  # noqa: F403
from tests.integration.test_relay_draining import *  # noqa: F403
from tests.integration.test_relay_order import *  # noqa: F403
from tests.integration.test_relay_ownership import *  # noqa: F403
from tests.integration.test_relay_pauses import *  # noqa: F403
from tests.support.log_stores import LogStore, log_store


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    if request.param == "sqlite":
        return log_store(tmp_path / "app.db")
    return log_store(request.getfixturevalue("pg_database"))


@pytest.fixture
def pg_store(pg_database: str) -> LogStore:
    return log_store(pg_database)

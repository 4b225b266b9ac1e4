"""The pytest plugin: a test in which an ``await outbox.add(...)`` was forgotten fails, and says where.

Loaded by pytest's entry point in every project that has Relevo installed, so it imports nothing of Relevo until the
application has.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

# The suites hold their assertions in this package: show the values there too.
pytest.register_assert_rewrite("relevo.testing.broker_conformance", "relevo.testing.broker_processes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Compare the un-awaited appends before and after the test; a test that failed by itself keeps its own error."""
    before = _unawaited()
    result = yield
    forgotten = [site for site in _unawaited() if site not in before]
    if forgotten:
        sys.modules["relevo.outbox.pending"].forget(forgotten)
        where = "\n".join(f"  {site}" for site in forgotten)
        pytest.fail(
            f"an append on an async handle was not awaited, so its event was NOT written:\n{where}\n"
            "Write `await outbox.add(...)`",
            pytrace=False,
        )
    return result


def _unawaited() -> list[object]:
    pending = sys.modules.get("relevo.outbox.pending")
    return [] if pending is None else pending.unawaited()

"""Log lines that come in masses: the first of a group, then a count that is written even if nothing follows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from relevo.telemetry import often as module
from relevo.telemetry.often import FIRST, GROUPS_MAX, WINDOW_S, Often
from tests.support.waiting import eventually_sync


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    logger = logging.getLogger("test.often")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def _often(clock: Clock) -> Often:
    return Often(logging.getLogger("test.often"), clock=clock)


def _fail(often: Often, number: int, group: str = "a", error: BaseException | None = None) -> None:
    often.log(
        logging.WARNING,
        group,
        f"failures of {group}",
        "attempt %d",
        number,
        extra={"event_id": number},
        error=error,
        error_group=group,
    )


def test_the_first_are_written_and_the_others_counted(records: list[logging.LogRecord]) -> None:
    clock = Clock()
    often = _often(clock)
    for number in range(FIRST + 127):
        _fail(often, number)
    assert [record.getMessage() for record in records] == [f"attempt {number}" for number in range(FIRST)]
    clock.now += WINDOW_S
    _fail(often, 1000)
    count, new = records[-2:]
    assert count.getMessage() == "… and 127 more in the last 10 s: failures of a"
    assert count.levelno == logging.WARNING and vars(count)["left_out"] == 127 and vars(count)["event_id"] == 131
    assert new.getMessage() == "attempt 1000"
    often.flush()


def test_groups_do_not_hide_one_another(records: list[logging.LogRecord]) -> None:
    often = _often(Clock())
    for number in range(1000):
        _fail(often, number, "loud")
    _fail(often, 1, "quiet")
    assert records[-1].getMessage() == "attempt 1" and len(records) == FIRST + 1
    often.flush()


def test_the_count_is_written_when_nothing_follows(
    records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storm ends, the process is idle: the count comes all the same, by a thread that keeps no process alive."""
    monkeypatch.setattr(module, "WINDOW_S", 0.05)
    often = Often(logging.getLogger("test.often"))
    for number in range(FIRST + 3):
        _fail(often, number)
    eventually_sync(lambda: len(records) == FIRST + 1, what="the count is written")
    assert records[-1].getMessage().startswith("… and 3 more")


def test_flush_writes_the_counts_once(records: list[logging.LogRecord]) -> None:
    often = _often(Clock())
    for number in range(FIRST + 1):
        _fail(often, number)
    often.flush()
    often.flush()
    assert len(records) == FIRST + 1


def test_the_stack_trace_of_a_kind_of_error_is_written_once(records: list[logging.LogRecord]) -> None:
    clock = Clock()
    often = _often(clock)
    for number in range(3):
        clock.now += WINDOW_S
        _fail(often, number, error=ValueError("a"))
    _fail(often, 4, "other", error=ValueError("b"))
    assert [record.exc_info is not None for record in records] == [True, False, False, True]


def test_memory_is_bounded_and_no_count_is_lost(records: list[logging.LogRecord]) -> None:
    """A stranger makes a group of each line: as many windows as allowed are kept, the oldest are closed early."""
    often = _often(Clock())
    for number in range(FIRST + 2):
        _fail(often, number, "first")
    for number in range(3 * GROUPS_MAX):
        _fail(often, number, f"group {number}", error=ValueError())
    assert len(often._windows) <= GROUPS_MAX and len(often._traced) <= module.TRACES_MAX
    assert sum("… and 2 more" in record.getMessage() for record in records) == 1
    often.flush()


def test_what_the_level_hides_costs_nothing(records: list[logging.LogRecord]) -> None:
    often = _often(Clock())
    often.log(logging.DEBUG, "a", "what", "hidden")
    assert records == [] and not often._windows


def test_many_threads_lose_no_line(records: list[logging.LogRecord]) -> None:
    often = _often(Clock())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _fail(often, number), range(400)))
    often.flush()
    written = [record for record in records if record.getMessage().startswith("attempt")]
    assert len(written) == FIRST and vars(records[-1])["left_out"] == 400 - FIRST

"""Tasks that end and should not have: logged with their traceback, shown, started again."""

from __future__ import annotations

import asyncio
import logging

import pytest

import relevo.tasks
from relevo.errors import ConfigError, LostOwnershipError, SchemaError, UnreachableError
from relevo.policy import Backoff
from relevo.runtime.clock import Clock
from relevo.runtime.patience import Patience, is_mistake, is_ours, reason_of
from relevo.runtime.pulse import Pulse
from relevo.tasks import Tasks, read
from tests.support.waiting import eventually

log = logging.getLogger("relevo.test")


class BrokenTextError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(relevo.tasks, "RESTART", Backoff(base=timedelta(milliseconds=10), cap=timedelta(seconds=1)))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("gone"),
        AssertionError(),
        MemoryError(),
        RecursionError(),
        UnreachableError("away"),
        BrokenTextError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_kept_task_that_fails_is_logged_and_started_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tasks, lives = Tasks("it", log), 0

    async def loop() -> None:
        nonlocal lives
        lives += 1
        if lives < 3:
            raise error
        await asyncio.Event().wait()

    kept = tasks.keep("loop", loop)
    await eventually(lambda: tasks.ended, what="it is seen to have ended")
    assert not tasks.live and type(error).__name__ in tasks.problems["task loop"]
    await eventually(lambda: lives == 3, what="it is started again")
    said = [record for record in caplog.records if "the task loop ended" in record.getMessage()]
    assert len(said) == 2 and all(record.exc_info and record.exc_info[1] is error for record in said)
    kept.cancel()
    await asyncio.wait_for(kept.over, 5)
    assert tasks.live


async def test_it_counts_as_live_once_it_runs_steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relevo.tasks, "STEADY_S", 0.05)
    tasks, lives = Tasks("it", log), 0

    async def loop() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            raise RuntimeError("once")
        await asyncio.Event().wait()

    tasks.keep("loop", loop)
    await eventually(lambda: not tasks.live, what="it ended")
    await eventually(lambda: tasks.live, what="it runs steadily")
    await tasks.aclose()


async def test_what_other_code_cancels_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    tasks, lives = Tasks("it", log), 0

    async def loop() -> None:
        nonlocal lives
        lives += 1
        await asyncio.Event().wait()

    tasks.keep("loop", loop)
    await eventually(lambda: lives == 1, what="it runs")
    next(task for task in asyncio.all_tasks() if task.get_name() == "relevo it: loop").cancel()
    await eventually(lambda: lives == 2, what="it runs again")
    assert "was cancelled by other code" in caplog.text
    await asyncio.wait_for(tasks.aclose(), 5)


async def test_a_return_is_an_end_where_it_may_not_be(caplog: pytest.LogCaptureFixture) -> None:
    tasks, lives, over = Tasks("it", log), 0, False

    async def loop() -> None:
        nonlocal lives
        lives += 1

    kept = tasks.keep("loop", loop, may_end=lambda: over)
    await eventually(lambda: lives >= 3, what="it is started again and again")
    assert "returned" in caplog.text and not tasks.live
    over = True
    await asyncio.wait_for(kept.over, 5)
    assert tasks.live


async def test_closing_ends_what_waits_to_be_started_again() -> None:
    tasks = Tasks("it", log)

    async def loop() -> None:
        raise RuntimeError

    tasks.keep("loop", loop)
    await eventually(lambda: tasks.ended, what="it ended")
    await asyncio.wait_for(tasks.aclose(), 5)
    assert tasks.live and not [task for task in asyncio.all_tasks() if "relevo it" in task.get_name()]


async def test_a_single_task_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("nobody asked")

    tasks = Tasks("it", log)
    await asyncio.wait([tasks.once("work", fail())])
    plain = asyncio.create_task(fail())
    read(plain, log, "plain work")
    await asyncio.wait([plain])
    await eventually(lambda: caplog.text.count("nobody asked") >= 2, what="both are logged")
    assert "it: work failed" in caplog.text and "plain work failed" in caplog.text


def test_trouble_is_said_at_once_and_repeats_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    patience = Patience("reading", log, clock=Clock(lambda: now))
    caplog.set_level(logging.INFO)
    for _ in range(50):
        assert 0 < patience.failed(UnreachableError("away")) <= 0.25
    assert len(caplog.records) == 1 and "reading waits" in caplog.text and patience.trouble.text
    now += 31
    patience.failed(UnreachableError("away"))
    assert "49 times more" in caplog.records[-1].getMessage()
    patience.failed(RuntimeError("a bug"))
    assert caplog.records[-1].levelno == logging.ERROR and caplog.records[-1].exc_info
    patience.worked()
    assert patience.trouble.text is None and "works again after 52" in caplog.text


def test_what_ends_a_start() -> None:
    """Mistakes of an operator and of Relevo; nothing that a database or a broker may say of itself."""
    import psycopg.errors

    assert is_mistake(ConfigError("x")) and is_mistake(SchemaError("x")) and is_mistake(AttributeError("x"))
    waits = [psycopg.errors.QueryCanceled(), psycopg.errors.SerializationFailure(), UnreachableError("x")]
    waits += [LostOwnershipError("x"), TimeoutError(), ConnectionResetError()]
    assert not any(is_mistake(error) for error in waits)
    assert is_ours(MemoryError()) and not is_ours(UnreachableError("x"))
    assert "QueryCanceled" in reason_of(waits[0]) and "57014" in reason_of(waits[0])
    assert "BrokenTextError" in reason_of(BrokenTextError())


def test_ages() -> None:
    now = 5.0
    pulse = Pulse(Clock(lambda: now))
    assert pulse.age_s("take") is None and pulse.ages() == {}
    pulse.beat("take")
    now = 8.5
    assert pulse.age_s("take") == 3.5 and pulse.ages() == {"take": 3.5}

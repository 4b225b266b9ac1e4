"""The consumer's small parts: scheduling by key, the gate, texts of errors, classification by code."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from relevo import Retry
from relevo.consumer.gate import Gate
from relevo.consumer.keys import KeyQueues
from relevo.errors import ConfigError
from relevo.outcome import Ambiguous, Conflict, Failed, Unavailable
from relevo.runtime.classify import classify
from relevo.runtime.texts import TEXT_BYTES_MAX, clean, describe
from relevo.storage.processes import Process, topic_conflicts


async def test_one_key_in_order_and_keys_side_by_side() -> None:
    """Key b goes on while the first of key a is stuck, and a's second waits for its first."""
    done: list[str] = []
    stuck = asyncio.Event()

    async def work(item: str) -> None:
        if item == "a1":
            await stuck.wait()
        done.append(item)

    queues: KeyQueues[str] = KeyQueues(work, lambda error: None)
    for item in ("a1", "a2", "b1", "b2"):
        queues.put(item[0], item)
    while len(done) < 2:
        await asyncio.sleep(0)
    assert done == ["b1", "b2"]
    stuck.set()
    await queues.join()
    assert done == ["b1", "b2", "a1", "a2"]
    assert len(queues) == 0


async def test_cancelled_queues_forget_what_waits() -> None:
    started = asyncio.Event()

    async def work(item: str) -> None:
        started.set()
        await asyncio.Event().wait()

    queues: KeyQueues[str] = KeyQueues(work, lambda error: None)
    queues.put("a", "a1")
    queues.put("a", "a2")
    await started.wait()
    await queues.cancel()
    await queues.join()
    assert len(queues) == 0


async def test_alone_means_alone_and_is_not_starved() -> None:
    """Whoever wants to be alone waits for those inside and keeps later ones out."""
    gate, log = Gate(), []
    first_inside, first_may_leave = asyncio.Event(), asyncio.Event()

    async def ordinary(name: str, wait: bool = False) -> None:
        async with gate.beside_others():
            log.append(f"+{name}")
            if wait:
                first_inside.set()
                await first_may_leave.wait()
            log.append(f"-{name}")

    async def suspect() -> None:
        async with gate.alone():
            log.append("+alone")
            for _ in range(5):
                await asyncio.sleep(0)
            log.append("-alone")

    tasks = [asyncio.create_task(ordinary("1", wait=True))]
    await first_inside.wait()
    tasks.append(asyncio.create_task(suspect()))
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(ordinary("2")))
    await asyncio.sleep(0)
    first_may_leave.set()
    await asyncio.gather(*tasks)
    assert log == ["+1", "-1", "+alone", "-alone", "+2", "-2"]


async def test_a_cancelled_wait_to_be_alone_lets_the_others_go_on() -> None:
    gate = Gate()
    async with gate.beside_others():
        waiting = asyncio.create_task(_alone(gate))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(5), gate.beside_others():
            pass


async def _alone(gate: Gate) -> None:
    async with gate.alone():
        pass


def test_texts_are_clean_and_bounded() -> None:
    """FAILURES row 35."""
    assert clean("a\x00b") == "a\\x00b"
    assert clean("\ud800") == "\\ud800"
    assert clean("x" * TEXT_BYTES_MAX) == "x" * TEXT_BYTES_MAX
    long = clean("ä" * TEXT_BYTES_MAX)
    assert len(long.encode()) <= TEXT_BYTES_MAX
    assert long.endswith("(cut)")
    assert clean("postgresql://me:se:cret@host/db failed") == "postgresql://me:***@host/db failed"


def test_an_error_is_described_by_type_and_the_reader_s_own_frame() -> None:
    def broken() -> None:
        int("x")

    with pytest.raises(ValueError) as caught:
        broken()
    assert describe(caught.value)[0].startswith("ValueError at tests.unit.test_consumer_parts:")
    assert describe(caught.value)[0].endswith("broken")

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "could not be made" in describe(Mute())[1]


class Coded(Exception):
    """A driver's error in German, with its code."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("Deadlock entdeckt")
        self.sqlstate = sqlstate


class Wrapped(Exception):
    """As SQLAlchemy wraps."""

    def __init__(self, orig: BaseException) -> None:
        self.orig = orig


@pytest.mark.parametrize(
    ("error", "stage", "broken", "expected"),
    [
        (Coded("40001"), "handler", False, Conflict),
        (Coded("40P01"), "commit", False, Conflict),
        (Wrapped(Coded("40P01")), "ours", False, Conflict),
        (Coded("57P01"), "handler", False, Unavailable),
        (Coded("53300"), "handler", False, Unavailable),
        (Coded("25006"), "ours", False, Unavailable),
        (Coded("42P01"), "ours", False, Unavailable),
        (Coded("42P01"), "handler", False, Failed),
        (Coded("23505"), "commit", False, Failed),
        (Coded(None), "handler", True, Unavailable),
        (Coded(None), "begin", False, Unavailable),
        (Coded(None), "commit", True, Ambiguous),
        (ConnectionError("some other service"), "handler", False, Failed),
        (ValueError("x"), "handler", False, Failed),
    ],
)
def test_errors_are_classified_by_code_stage_and_connection(
    error: Exception, stage: Any, broken: bool, expected: type
) -> None:
    """FAILURES row 34. By SQLSTATE, whatever the language; only this transaction's connection is an outage."""
    assert isinstance(classify(error, stage, broken=broken), expected)


def test_a_cause_that_was_wrapped_by_the_handler_still_counts() -> None:
    try:
        try:
            raise Coded("40001")
        except Coded as error:
            raise RuntimeError("reservation failed") from error
    except RuntimeError as error:
        assert isinstance(classify(error, "handler", broken=False), Conflict)


def test_sqlite_codes() -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY | (2 << 8)
    full = sqlite3.OperationalError("disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert isinstance(classify(busy, "handler", broken=False), Conflict)
    assert isinstance(classify(full, "handler", broken=False), Unavailable)


def test_retry_takes_seconds_or_a_timedelta() -> None:
    assert Retry(2.5).after == timedelta(seconds=2.5)
    assert Retry(timedelta(minutes=1), "later").reason == "later"
    with pytest.raises(ConfigError):
        Retry(-1)


def test_topic_lists_that_differ_across_processes_are_a_warning() -> None:
    """A rolling deploy: allowed, and shown."""
    from uuid import uuid4

    def process(name: str, *topics: str) -> Process:
        return Process(uuid4(), "consumer", name, "host", 1, "0", topics, {}, 1.0)

    assert topic_conflicts([process("a", "x", "y"), process("a", "y", "x"), process("b", "z")]) == []
    [warning] = topic_conflicts([process("a", "x"), process("a", "x", "y")])
    assert "'a'" in warning and "[x]" in warning and "[x, y]" in warning

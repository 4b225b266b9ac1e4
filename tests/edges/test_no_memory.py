"""A handler that allocates without end, in a real process whose memory is bounded: its message is parked after its
attempts, whether Python raises ``MemoryError`` or the process dies of it, and its neighbours are done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.test_consumer_processes import Consumers
from tests.support.consumers import effects, held, inbox, make_effects, order
from tests.support.devouring import DEVOUR
from tests.support.relays import sqlite_store
from tests.support.waiting import eventually_sync

COUNT = 30


SHORT = {("blocking", "blocks"), ("awaited", "texts")}


@pytest.mark.xdist_group("no memory")
@pytest.mark.parametrize(
    ("form", "how"),
    [
        pytest.param(form, how, marks=[] if (form, how) in SHORT else [pytest.mark.soak])
        for form in ("blocking", "awaited")
        for how in sorted(DEVOUR)
    ],
)
async def test_only_the_message_that_takes_all_memory_is_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, how: str
) -> None:
    store = sqlite_store(tmp_path / "app.db")
    make_effects(store)
    monkeypatch.setenv("TEST_HOW", how)
    consumers = Consumers(store, tmp_path, f"tests.support.devouring:{form}")
    await consumers.publish([order(number, f"k{number}") for number in range(COUNT)])
    process = consumers.start()
    deaths = 0

    def over() -> bool:
        nonlocal process, deaths
        if process.poll() is not None:  # as a supervisor of the operator's would
            deaths += 1
            process = consumers.start()
        return len(inbox(store)) == COUNT - 1 and [row[0] for row in held(store)] == ["parked"]

    try:
        eventually_sync(over, what="29 are done and one is parked", timeout_s=150)
        process.terminate()
        assert process.wait(30) == 0, consumers.log()
    finally:
        consumers.end()
    [(_, reason, error_type, attempts)] = held(store)
    assert error_type is not None and ("MemoryError" in error_type or "ProcessDied" in error_type)
    assert reason and attempts == 3
    assert sorted(effects(store)) == list(range(1, COUNT))
    assert deaths <= 3

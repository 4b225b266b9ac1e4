"""Durable handlers and real consumer processes that are killed between storing, acknowledging and handling."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_consumer_processes import Consumers
from tests.support.consumers import effects, held, inbox, make_effects, order
from tests.support.relays import Store
from tests.support.waiting import eventually_sync


@pytest.fixture
def consumers(store: Store, tmp_path: Path) -> Iterator[Consumers]:
    make_effects(store)
    started = Consumers(store, tmp_path, "tests.support.durable:billing")
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize("point", ["stored", "settled", "began", "handled", "drained"])
async def test_a_stored_message_survives_and_is_handled_once(consumers: Consumers, point: str) -> None:
    """Killed after storing and before the acknowledgement, after it, in the handler, after its commit: the next process
    finds the rest in the table (or gets it again), one effect for each, in order, and the key is live in the end."""
    await consumers.publish([order(number, "one") for number in range(12)])
    first = consumers.start(probe=f"consumer.{point}=kill:4")
    assert first.wait(30) == -signal.SIGKILL
    assert f"probe consumer.{point}: SIGKILL" in consumers.log()
    consumers.start()
    store = consumers.store
    eventually_sync(lambda: len(effects(store)) >= 12 and not held(store), what="all effects, and the key live")
    assert effects(store) == list(range(12))
    assert set(inbox(store).values()) == {"done"} and len(inbox(store)) == 12

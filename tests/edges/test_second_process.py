"""A message stays in the handler of a real process, which runs or is frozen; a second process of the consumer joins."""

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
def consumers(pg_store: Store, tmp_path: Path) -> Iterator[Consumers]:
    make_effects(pg_store)
    started = Consumers(pg_store, tmp_path)
    with started.config.open("a") as file:
        file.write("handler_idle_timeout_s = 12\n")
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize("then", ["killed", "frozen"])
async def test_only_its_key_waits(consumers: Consumers, then: str) -> None:
    """Other keys are handled by both while message 1 stands in the first. Killed, or frozen for longer than the server
    lets its transaction idle, the first one loses it; the second handles it and what is behind it, in order, once."""
    first = consumers.start(stuck=1)
    eventually_sync(lambda: processes(consumers) == 1, what="the first runs", timeout_s=40)
    await consumers.publish([order(1, "one"), order(2, "one")])
    eventually_sync(lambda: "stuck" in consumers.log(), what="the handler stands", timeout_s=40)
    if then == "frozen":
        first.send_signal(signal.SIGSTOP)
    second = consumers.start()
    wanted = set(range(10, 40))
    await consumers.publish([order(number, f"k{number}") for number in wanted])
    eventually_sync(lambda: wanted <= set(effects(consumers.store)), what="the others are handled", timeout_s=60)
    if then == "killed":
        assert not {1, 2} & set(effects(consumers.store))
        first.kill()
    eventually_sync(lambda: {1, 2} <= set(effects(consumers.store)), what="both of its key", timeout_s=60)
    eventually_sync(lambda: len(inbox(consumers.store)) == 32, what="all inbox rows")
    first.kill()
    second.terminate()
    assert second.wait(30) == 0, consumers.log()
    assert sorted(effects(consumers.store)) == [1, 2, *sorted(wanted)]
    assert [number for number in effects(consumers.store) if number < 10] == [1, 2]
    assert held(consumers.store) == []


def processes(consumers: Consumers) -> int:
    return len(consumers.store.query("select 1 from relevo_process where role = 'consumer'"))

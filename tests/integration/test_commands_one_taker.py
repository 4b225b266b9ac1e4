"""A command has one kind of handler: a second consumer with a handler for it is refused, or told of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo import Consumer, Event
from relevo.consumer import ConsumerRunner
from relevo.errors import ConfigError
from relevo.settings import Settings
from relevo.storage.processes import Process, command_conflicts
from tests.support.consumers import make_effects, running, settings_for
from tests.support.events import ChargeCard, OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store


def taker(name: str, *topics: str, what: Any = ChargeCard) -> Consumer:
    consumer = Consumer(name, topics or ["billing"])

    @consumer.on(what)
    def handle(event: Event[Any]) -> None: ...

    return consumer


def test_two_in_one_process_are_refused() -> None:
    """Same command, a topic in common. Another topic, an event, and a pattern (an audit log, say) are no conflict."""
    with pytest.raises(ConfigError, match=r"'one' and 'two' both handle the command billing\.charge"):
        ConsumerRunner([taker("one"), taker("two", "other", "billing")], Settings())
    ConsumerRunner([taker("one"), taker("two", "other")], Settings())
    ConsumerRunner([taker("one"), taker("two", what=OrderPlaced), taker("three", what="billing.*")], Settings())


async def test_a_second_one_elsewhere_is_refused_at_its_start(store: Store) -> None:
    """While `one` runs, `two` does not start, and says who has the command; its row in the table is gone. More of
    `one` may come, and so may a consumer of events. After `one` has left, `two` starts."""
    make_effects(store)
    async with (
        running(taker("one"), store, FakeBroker(), lease_s=60.0),
        running(taker("one"), store, FakeBroker(), lease_s=60.0),
    ):
        two = ConsumerRunner(taker("two"), settings_for(store), broker=FakeBroker())
        with pytest.raises(
            ConfigError, match=r"'two' handles the command billing\.charge, and so does 'one' \(process"
        ):
            await asyncio.wait_for(two.run(), 60)
        assert store.query("select distinct name from relevo_process") == [("one",)]
        async with running(taker("three", what=OrderPlaced), store, FakeBroker()):
            pass
    async with running(taker("two"), store, FakeBroker()):
        pass


def test_status_tells_of_two_that_run() -> None:
    """Seen across processes only: two that started before either could know."""

    def process(name: str, topics: tuple[str, ...], *commands: str) -> Process:
        from uuid import uuid4

        return Process(uuid4(), "consumer", name, "here", 1, "0", topics, {"commands": list(commands)}, 1.0)

    fine = [process("a", ("x",), "go"), process("a", ("x",), "go"), process("b", ("y",), "go"), process("c", ("x",))]
    assert command_conflicts(fine) == []
    [warning] = command_conflicts([*fine, process("d", ("x", "z"), "go")])
    assert warning == "the command 'go' on 'x' is handled by 'a' and 'd': each obeys it"

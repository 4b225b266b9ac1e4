"""What is queued for a held key is sorted by the broker's positions, or, where the broker has none, by arrival."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from relevo.clients import database_for
from relevo.storage import holding
from relevo.storage.holding import Head, Why, key_id
from tests.support.consumers import make_effects, order, running
from tests.support.fake_subscription import FakeBroker
from tests.support.parking import billing
from tests.support.relays import Store
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("positions", "drained"),
    [([7, 9, 8], [0, 2, 1]), ([None, None, None], [0, 1, 2]), ([2**60, None, None], [0, 1, 2])],
)
async def test_the_order_of_a_queue(store: Store, positions: list[int | None], drained: list[int]) -> None:
    """A log's positions decide, whoever comes first; without one a message goes behind everything that is there,
    whatever numbers that has (it may have been brought back from a dead-letter topic)."""
    database = database_for(store.settings)
    messages = [order(number) for number in range(3)]
    key = key_id("consumer", "books", messages[0])
    for message, position in zip(messages, positions, strict=True):
        hold = holding.hold(key, message, "s", position, state="waiting", why=Why("w"), attempts=1, delay_s=0.0)
        await database.run(hold)
    (claim,) = await database.run(holding.claim_due("consumer", "books", uuid4(), 10.0, 1))
    found = []
    for _ in messages:
        head = await database.run(holding.head(claim, lease_s=10.0))
        assert isinstance(head, Head)
        found.append(messages.index(next(each for each in messages if each.event_id == head.message.event_id)))
        assert await database.run(holding.remove(claim, head.held_seq))
    assert found == drained
    await database.aclose()


@pytest.mark.parametrize("keeps_history", [True, False])
async def test_positions_of_a_process_are_not_believed(store: Store, keeps_history: bool) -> None:
    """FAILURES row 43: a broker without history has no positions of its own, so each process counts, from wherever it
    begins. The second process counts lower than the first did: a log's message of a lower position stood earlier, a
    queue's came later."""
    make_effects(store)

    class Broker(FakeBroker):
        capabilities = msgspec.structs.replace(FakeBroker.capabilities, keeps_history=keeps_history)

    first, second = Broker(), Broker()
    first.append(*(order(number, key="other") for number in range(5)), order(10, key="k"))
    second.append(order(11, key="k"))
    for broker, count in ((first, 1), (second, 2)):
        async with running(billing({10, 11}), store, broker):
            await eventually(
                lambda count=count: store.query("select count(*) from relevo_held_message") == [(count,)], what="held"
            )
    rows = store.query("select payload from relevo_held_message order by position, held_seq")
    numbers = [bytes(payload) for (payload,) in rows]
    assert [b"10" in number for number in numbers] == ([False, True] if keeps_history else [True, False])

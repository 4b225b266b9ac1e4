"""Handing a page to a broker that is not prefix-safe: in waves, and no further than the lease goes."""

from __future__ import annotations

from datetime import UTC, datetime

from relevo.ids import uuid7
from relevo.message import Message
from relevo.outcome import Rejected, Unconfirmed
from relevo.relay.sending import LEASE_OVER, send
from tests.support.relays import FakePublisher


def message(number: int, key: bytes | None) -> Message:
    return Message(
        event_id=uuid7(),
        kind="event",
        topic="shop.order",
        key=key,
        type="shop.order.placed",
        schema_version=1,
        payload=str(number).encode(),
        created_at=datetime.now(UTC),
    )


async def test_one_message_of_a_key_at_a_time() -> None:
    """A key whose message is refused sends nothing more; the others go on."""
    publisher = FakePublisher(lambda each: Rejected("x", "y") if each.payload == b"2" else None, prefix_safe=False)
    page = [message(number, b"k%d" % (number % 2)) for number in range(6)]
    outcomes = await send(publisher, page)
    assert publisher.payloads(b"k0") == [0]
    assert publisher.payloads(b"k1") == [1, 3, 5]
    assert sorted(outcomes) == [2, 4] and isinstance(outcomes[4], Unconfirmed)


async def test_nothing_is_sent_after_the_lease_is_over() -> None:
    """FAILURES row 11, architecture §3.7: the clock is looked at before every send, so also between waves: a relay
    that was frozen in the middle of a page must not go on with it, since the next owner sends the same page, and may
    be behind us in it."""
    publisher = FakePublisher(prefix_safe=False)
    page = [message(number, b"one") for number in range(5)]
    outcomes = await send(publisher, page, lambda: len(publisher.log) < 2)
    assert publisher.payloads() == [0, 1]
    assert outcomes[2] == LEASE_OVER
    assert [index for index, outcome in outcomes.items() if isinstance(outcome, Unconfirmed)] == [2, 3, 4]


async def test_a_whole_page_is_not_sent_either() -> None:
    publisher = FakePublisher(prefix_safe=True)
    page = [message(number, b"one") for number in range(3)]
    assert await send(publisher, page, lambda: False) == dict.fromkeys(range(3), LEASE_OVER)
    assert publisher.log == []

"""Who a stranger's message on RabbitMQ is: ids from headers, from properties, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from relevo.brokers.rabbitmq.framing import NO_ID, WithoutId, malformed, to_message
from relevo.clients.aio_pika import properties


def delivered(body: bytes = b"body", **given: Any) -> Any:
    return SimpleNamespace(header=SimpleNamespace(properties=properties(**given)), body=body)


def identity(message: Any, without_id: WithoutId = "run", topic: str = "t", position: int = 1) -> UUID:
    return to_message(topic, message, f"{topic}/0", position, without_id).event_id


def test_an_id_is_the_same_at_each_delivery() -> None:
    """A UUID as it is; anything else within its source: CloudEvents' or ``app_id``, else the topic. Two strangers that
    count 1, 2, 3 are two."""
    given = uuid4()
    assert identity(delivered(message_id=str(given))) == given
    one = identity(delivered(message_id="17", app_id="shop"))
    assert one == identity(delivered(message_id="17", app_id="shop", headers={"x-delivery-count": 3}), position=9)
    assert one == identity(delivered(headers={"ce_id": "17", "ce_source": "shop"}))
    others = [
        identity(delivered(message_id="18", app_id="shop")),
        identity(delivered(message_id="17", app_id="mail")),
        identity(delivered(message_id="17")),
        identity(delivered(message_id="17"), topic="u"),
    ]
    assert len({one, *others}) == 5


def test_without_an_id_each_delivery_is_another_message() -> None:
    """``run``: two equal messages are two, and so are, alas, two deliveries of one."""
    assert identity(delivered()) != identity(delivered())
    assert malformed(delivered(), "run") is None


def test_without_an_id_by_content() -> None:
    """``content``: what the sender wrote, all of it; not what the server counts. In another topic it is another one."""
    same = {"message_type": "a.b", "headers": {"n": 5}}
    one = identity(delivered(**same), "content")
    assert one == identity(delivered(**same | {"headers": {"n": 5, "x-delivery-count": 2}}), "content", position=7)
    others = [
        identity(delivered(**same), "content", topic="u"),
        identity(delivered(b"other", **same), "content"),
        identity(delivered(**same | {"message_type": "a.c"}), "content"),
        identity(delivered(**same | {"headers": {"n": "5"}}), "content"),
    ]
    assert len({one, *others}) == 5


@pytest.mark.parametrize(
    "given", [{"message_id": "1"}, {"headers": {"ce_id": "1"}}, {"headers": {"cloudEvents:id": "1"}}]
)
def test_without_an_id_parked(given: dict[str, Any]) -> None:
    """``park``: only what has none at all."""
    assert malformed(delivered(), "park") == NO_ID
    assert malformed(delivered(**given), "park") is None

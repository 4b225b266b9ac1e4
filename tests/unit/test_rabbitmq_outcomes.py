"""RabbitMQ's errors as outcomes, and what its options refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.brokers.rabbitmq.options import parse
from relevo.brokers.rabbitmq.outcomes import NOT_SENT, OF_ONE, classify
from relevo.brokers.rabbitmq.topology import SLOTS, routing_key, slot_of
from relevo.errors import ConfigError
from relevo.outcome import Rejected, Unavailable, Unconfirmed

errors: Any = pytest.importorskip("aiormq").exceptions
URL = "amqp://guest:guest@127.0.0.1:5672/"


def made(name: str) -> BaseException:
    """An error of that type, whatever its constructor wants."""
    kind = getattr(errors, name)
    error: BaseException = kind.__new__(kind)
    return error


@pytest.mark.parametrize(
    ("name", "alone", "kind", "code"),
    [
        ("PublishError", False, Rejected, "unroutable"),
        ("DeliveryError", False, Unavailable, None),
        ("ChannelAccessRefused", True, Rejected, "not_authorised"),
        ("ChannelAccessRefused", False, Unconfirmed, None),
        ("ChannelPreconditionFailed", True, Rejected, "precondition_failed"),
        ("ChannelPreconditionFailed", False, Unconfirmed, None),
        ("ChannelNotFoundEntity", True, Unconfirmed, None),
        ("ChannelInvalidStateError", True, Unavailable, None),
        ("AMQPConnectionError", True, Unconfirmed, None),
        ("ConnectionClosed", True, Unconfirmed, None),
    ],
)
def test_classification(name: str, alone: bool, kind: type, code: str | None) -> None:
    """By type. What was perhaps stored is unconfirmed; a refusal that closed the channel is a message's only when
    nothing else was under way."""
    outcome = classify(made(name), alone=alone)
    assert isinstance(outcome, kind)
    assert getattr(outcome, "code", None) == code


@pytest.mark.parametrize("error", [None, asyncio.CancelledError(), RuntimeError("unknown"), ConnectionResetError()])
def test_what_was_cut_off_is_unconfirmed(error: BaseException | None) -> None:
    assert isinstance(classify(error, alone=True), Unconfirmed)


def test_the_tables_use_types_the_client_has() -> None:
    """A misspelt name would never match."""
    assert all(hasattr(errors, name) for name in (*OF_ONE, *NOT_SENT))


def test_slots_are_part_of_the_wire_format() -> None:
    """Whoever publishes without Relevo computes the same: murmur2 as in Kafka's clients, modulo 64."""
    assert SLOTS == 64
    assert [slot_of(key) for key in (b"", b"a", b"order-1", b"\x00\xff")] == [25, 60, 54, 33]
    assert routing_key(7, "shop.order.placed") == "s07.shop.order.placed"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queues": 0}, "between 1 and 64"),
        ({"queues": 65}, "between 1 and 64"),
        ({"prefetch": 0}, "prefetch"),
        ({"window": 0}, "window"),
        ({"send_timeout_s": 5}, "Set relay.send_timeout_s"),
        ({"queue_length_max": -1}, "queue_length_max"),
        ({"queue": 4}, "did you mean 'queues'"),
        ({"queues": "many"}, "queues"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(URL, options)


@pytest.mark.parametrize(
    "url", ["amqp:", "amqp://", "amqp://:5672", "amqp://host:0", "amqp://host:port", "http://host"]
)
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError, match="amqp://user:password@host:port/vhost"):
        parse(url, {})

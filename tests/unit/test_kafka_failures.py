"""Failed reports find their messages by what they are."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from relevo.brokers.kafka.failures import Failure, locate
from relevo.message import Message


def message(number: int, key: bytes | None, payload: bytes | None, topic: str = "t") -> Message:
    return Message(
        event_id=UUID(int=number), type="t", topic=topic, key=key, payload=payload, created_at=datetime.now(UTC)
    )


def failure(key: bytes | None, payload: bytes | None, name: str = "E", topic: str = "t") -> Failure:
    return Failure(topic, key, payload, name, "")


def found(messages: list[Message], failures: list[Failure], without: frozenset[int] = frozenset()) -> dict[int, str]:
    return {index: failed.name for index, failed in locate(messages, failures, without)}


def test_by_topic_key_and_payload() -> None:
    messages = [message(1, b"a", b"1"), message(2, b"a", b"2"), message(3, b"b", b"1"), message(4, b"a", b"1", "u")]
    assert found(messages, [failure(b"a", b"1", "one"), failure(b"b", b"1", "three")]) == {0: "one", 2: "three"}


def test_of_equal_ones_of_a_key_the_last_failed() -> None:
    """Nothing of a key is accepted behind one that is not."""
    messages = [message(number, b"a", b"same") for number in range(4)]
    assert found(messages, [failure(b"a", b"same", "x"), failure(b"a", b"same", "y")]) == {2: "x", 3: "y"}


@pytest.mark.parametrize("key", [None, b""])
def test_of_equal_ones_without_a_key_all_count_as_failed(key: bytes | None) -> None:
    """Nobody can tell which; what came twice is absorbed, what was lost is not. The client may report an empty key or
    payload as none."""
    messages = [message(number, key, b"" if number % 2 else None) for number in range(3)]
    assert found(messages, [failure(None, None)]) == {0: "E", 1: "E", 2: "E"}


def test_what_was_never_handed_over_is_not_meant() -> None:
    messages = [message(number, b"a", b"same") for number in range(3)]
    assert found(messages, [failure(b"a", b"same")], frozenset({2})) == {1: "E"}

"""Which messages go ahead of their key while a broker does not know the producer."""

from __future__ import annotations

import pytest

from relevo.brokers.kafka import first_contact
from relevo.brokers.kafka.admin import Topic
from relevo.brokers.kafka.first_contact import FirstContact
from relevo.testing.broker_processes import make_message

TWO = {"orders": Topic(None, partitions=2)}


def test_the_first_of_each_key_until_every_partition_has_stored_something() -> None:
    contact = FirstContact()
    page = [make_message("orders", key=key) for key in (b"a", b"a", None, b"b", b"a", b"b")]
    assert contact.first(page, TWO) == [0, 3]
    contact.met("orders", b"a", 0)
    contact.conclude(TWO)
    assert contact.first(page, TWO) == [3]  # b was not stored
    contact.met("orders", b"b", 1)
    contact.conclude(TWO)
    assert contact.first([make_message("orders", key=b"new")], TWO) == []


def test_topics_are_apart_and_may_grow() -> None:
    contact = FirstContact()
    contact.met("orders", b"a", 0)
    contact.met("orders", b"b", 1)
    contact.conclude(TWO)
    both = {**TWO, "bills": Topic(None, partitions=1)}
    page = [make_message("orders", key=b"a"), make_message("bills", key=b"a"), make_message("bills", key=b"a")]
    assert contact.first(page, both) == [1]
    grown = {"orders": Topic(None, partitions=3)}
    assert contact.first(page[:1], grown) == [0]


def test_a_topic_of_unknown_size_stays_strange() -> None:
    contact = FirstContact()
    unknown = {"orders": Topic(None)}
    contact.conclude(unknown)
    contact.met("orders", b"a", 0)
    contact.conclude(unknown)
    page = [make_message("orders", key=b"a"), make_message("orders", key=b"b")]
    assert contact.first(page, TWO) == [1]


def test_brokers_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"orders": Topic(None, partitions=1)}
    contact = FirstContact()
    contact.met("orders", b"a", 0)
    contact.conclude(one)
    page = [make_message("orders", key=b"a")]
    assert contact.first(page, one) == []
    now = first_contact.time.monotonic()
    monkeypatch.setattr(first_contact.time, "monotonic", lambda: now + first_contact.REMEMBERED_S + 1)
    assert contact.first(page, one) == [0]

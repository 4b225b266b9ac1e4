"""Kafka's errors as outcomes."""

from __future__ import annotations

import pytest

from relevo.brokers.kafka.outcomes import REJECTED, UNAVAILABLE, classify
from relevo.outcome import Rejected, Unavailable, Unconfirmed


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MSG_SIZE_TOO_LARGE", Rejected),
        ("_UNKNOWN_TOPIC", Rejected),
        ("TOPIC_AUTHORIZATION_FAILED", Rejected),
        ("_TRANSPORT", Unavailable),
        ("_PURGE_QUEUE", Unavailable),
        ("NOT_LEADER_FOR_PARTITION", Unavailable),
        ("_PURGE_INFLIGHT", Unconfirmed),
        ("_MSG_TIMED_OUT", Unconfirmed),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Unconfirmed),
        ("SOMETHING_NEW", Unconfirmed),
    ],
)
def test_classification(name: str, kind: type) -> None:
    """What was perhaps stored is unconfirmed, never unavailable; what nobody knows is unconfirmed too."""
    assert isinstance(classify(name, "why"), kind)


def test_the_tables_use_names_the_client_knows() -> None:
    """A misspelt name would never match."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    known = {confluent_kafka.KafkaError(code).name() for code in range(-200, 140)}
    assert not (set(REJECTED) | UNAVAILABLE) - known
    assert not set(REJECTED) & UNAVAILABLE

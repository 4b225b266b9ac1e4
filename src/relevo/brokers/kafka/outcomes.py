"""What each of Kafka's errors means for a message. Data, by the client's name of the error code; the docs print it.

Names with a leading underscore are librdkafka's own, the others come from the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from relevo.outcome import PublishOutcome, Rejected, Unavailable, Unconfirmed

REJECTED: Final[Mapping[str, str]] = {
    "MSG_SIZE_TOO_LARGE": "message_too_large",
    "RECORD_LIST_TOO_LARGE": "message_too_large",
    "UNKNOWN_TOPIC_OR_PART": "unknown_topic",
    "TOPIC_EXCEPTION": "unknown_topic",
    "_UNKNOWN_TOPIC": "unknown_topic",
    "_UNKNOWN_PARTITION": "unknown_topic",
    "TOPIC_AUTHORIZATION_FAILED": "not_authorised",
    "CLUSTER_AUTHORIZATION_FAILED": "not_authorised",
    "INVALID_RECORD": "invalid_record",
    "INVALID_TIMESTAMP": "invalid_record",
    "INVALID_MSG_SIZE": "invalid_record",
    "POLICY_VIOLATION": "policy_violation",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "invalid_record",
}
"""The broker will not take the message: our code for it."""

OF_THE_TOPIC: Final = frozenset({"unknown_topic", "not_authorised"})
"""Codes that hold for every message of the topic. The others are about one message, but the broker says them of a whole
batch."""

UNAVAILABLE: Final = frozenset(
    {
        *("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_AUTHENTICATION", "_SSL"),
        *("_PURGE_QUEUE", "_QUEUE_FULL", "_DESTROY", "_MAX_POLL_EXCEEDED", "_WAIT_COORD", "_NODE_UPDATE"),
        *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "BROKER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"),
        *("NETWORK_EXCEPTION", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
        *("NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR", "THROTTLING_QUOTA_EXCEEDED", "SASL_AUTHENTICATION_FAILED"),
        *("REQUEST_TIMED_OUT", "NOT_CONTROLLER"),
    }
)
"""Nothing of the message was stored, and its time will come. ``_PURGE_QUEUE``: taken back before it was sent."""


def classify(name: str, reason: str) -> PublishOutcome:
    """The outcome of a message whose delivery report names this error; what is not in the tables is *unconfirmed*: it
    goes again with the same id (``_PURGE_INFLIGHT``, ``_MSG_TIMED_OUT``, ``NOT_ENOUGH_REPLICAS_AFTER_APPEND``, …)."""
    code = REJECTED.get(name)
    if code is not None:
        return Rejected(code, f"{name}: {reason}")
    if name in UNAVAILABLE:
        return Unavailable(f"{name}: {reason}")
    return Unconfirmed(f"{name}: {reason}")


def table() -> str:
    """Markdown, for the reference."""
    rows = ["| outcome | Kafka's errors |", "|---|---|"]
    for code in dict.fromkeys(REJECTED.values()):
        names = [f"`{name}`" for name, its in REJECTED.items() if its == code]
        rows.append(f"| rejected, `{code}` | {', '.join(names)} |")
    rows.append(f"| unavailable | {', '.join(f'`{name}`' for name in sorted(UNAVAILABLE))} |")
    rows.append("| unconfirmed | everything else |")
    return "\n".join(rows) + "\n"

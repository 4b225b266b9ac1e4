"""The settings for people: names, types and defaults from ``relevo.settings``, a sentence for each from here.

``relevo init`` and ``docs/reference/settings.md`` are made of it; a test holds that no setting lacks its sentence.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from relevo.settings import (
    BrokerSettings,
    ConsumerSettings,
    DatabaseSettings,
    DestinationSettings,
    EffectsSettings,
    HealthSettings,
    LogSettings,
    NamedConsumerSettings,
    OutboxSettings,
    RelaySettings,
    RetentionSettings,
    Settings,
)

DESCRIPTIONS: Final = {
    "service": "The name of this service; the CloudEvents source of its messages is urn:relevo:<service>.",
    "message_bytes_max": "Largest message (payload, key and headers) that can be appended, in bytes.",
    "database.url": "postgresql://user@host/database, or sqlite:///relative.db, or sqlite:////absolute/path.db.",
    "database.schema": "PostgreSQL schema of the tables, created if missing; the search path decides if not set.",
    "database.prefix": "What the names of all tables, functions and indexes begin with.",
    "database.prepared_statements": "Switch off behind a transaction pooler that does not keep prepared statements.",
    "broker.url": "kafka://host:9092, amqp://user:password@host/ (RabbitMQ), or embedded:file.db for a broker in a "
    "file on this machine.",
    "broker.options": "Options for the broker's client, by its own names, passed on as they are.",
    "outbox.validate": "Whether an event is read back from its payload and compared before it is written; an "
    "Outbox may say otherwise.",
    "relay.source": "How the outbox is read; stored in the tables by `relevo migrate`, and refused if it differs. "
    "auto: as the tables are read already; new ones by log on PostgreSQL, by mark on SQLite.",
    "relay.batch_max": "Most messages read and handed over at once.",
    "relay.batch_bytes_max": "Most payload bytes read at once, so that memory does not depend on the backlog.",
    "relay.lease_s": "How long a lane stays with a relay that stopped answering, in seconds.",
    "relay.send_timeout_s": "How long a send may take before what is not confirmed is taken back, and how long "
    "before the end of its lease a relay stops sending, in seconds.",
    "relay.poll_min_s": "Shortest wait between two looks at an empty outbox, in seconds.",
    "relay.poll_max_s": "Longest wait between two looks at an empty outbox, in seconds: the latency of a quiet system.",
    "relay.stop_timeout_s": "How long the first SIGTERM waits for what is in flight, in seconds.",
    "consumer.in_flight_max": "Most messages taken and not yet settled by one process.",
    "consumer.connections_max": "Transactions of async handlers at once; each has a database connection of its own.",
    "consumer.batch": "Most messages handled in one transaction, when all goes well; 1: each in its own.",
    "consumer.batch_max": "Most messages taken from the broker at once.",
    "consumer.threads": "Transactions of handlers that are plain functions at once, each in a thread of its own.",
    "consumer.lease_s": "How long a held key stays with a process that stopped answering, in seconds.",
    "consumer.redelivery_s": "How late the same message may come again, in seconds: the longest outage to plan for, in "
    "which a relay sends again what was not confirmed. The inbox's window must be longer.",
    "consumer.inbox_window_s": "How long the inbox remembers an event, in seconds: a later duplicate is applied again.",
    "consumer.stop_timeout_s": "How long the first SIGTERM waits for the handlers that run, in seconds.",
    "consumer.handler_idle_timeout_s": "PostgreSQL ends a transaction of a handler that is idle for so long, in "
    "seconds; not set: 20 leases, at least 60 seconds; 0: never.",
    "retention.outbox_days": "How long settled messages stay in the outbox, in days; 0: for ever.",
    "retention.then": "What becomes of them: deleted, moved to the table `relevo_archive`, or dropped with their whole "
    "partition (PostgreSQL).",
    "retention.partition_days": 'With `then = "partitions"`: how much one partition of the outbox covers, in days.',
    "retention.effects_days": "How long effects that are done are remembered, in days; 0: for ever. What is replayed "
    "later than that is done again.",
    "retention.every_s": "How often one of the relays purges, in seconds; 0: only `relevo purge` does.",
    "retention.batch": "Rows looked at by one transaction of a purge.",
    "retention.pause_s": "How long a purge rests between two transactions, in seconds.",
    "effects.grace_s": "A lease is the effect's time-out and this, in seconds; acts begin in its first half.",
    "effects.at_once": "Acts of one effect under way at once in one process.",
    "effects.poll_s": "How often effects that other processes recorded are looked for, in seconds.",
    "health.host": "Where liveness and readiness are served.",
    "health.port": "Port of the health endpoint; 0 switches it off.",
    "log.format": "Lines for people (text) or for machines (json).",
    "log.level": "The least severe level that is written.",
    'consumers."NAME".dead_letters': "Whether a copy of what this consumer gives up also goes to NAME.TOPIC.dlq.",
    'destinations."TOPIC".on_rejected': "When the broker refuses a message: park its key, block the topic, or skip the "
    "message.",
}

_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "": Settings,
    "database": DatabaseSettings,
    "broker": BrokerSettings,
    "outbox": OutboxSettings,
    "relay": RelaySettings,
    "consumer": ConsumerSettings,
    "effects": EffectsSettings,
    "retention": RetentionSettings,
    "health": HealthSettings,
    "log": LogSettings,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. ``path``: its full name; ``variable``: in the environment, ``""`` for a table."""

    name: str
    path: str
    type: str
    default: Any
    variable: str
    doc: str


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the file; ``name`` is ``""`` for the top."""

    name: str
    doc: str
    settings: Sequence[Setting]


def settings_tree() -> list[Section]:
    """Every section and setting that can stand in a file, in the file's order."""
    return [Section(name, _first_sentence(struct), _settings(name, struct)) for name, struct in _SECTIONS.items()]


def named_consumer_settings() -> Sequence[Setting]:
    """The settings of one consumer, ``[consumers."NAME"]``."""
    return _settings('consumers."NAME"', NamedConsumerSettings)


def destination_settings() -> Sequence[Setting]:
    """The settings of one topic, ``[destinations."TOPIC"]``."""
    return _settings('destinations."TOPIC"', DestinationSettings)


def _settings(section: str, struct: type[msgspec.Struct]) -> list[Setting]:
    found = []
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        if not section and (field.name in _SECTIONS or field.name in ("consumers", "destinations")):
            continue
        path = f"{section}.{field.name}" if section else field.name
        default = field.default if field.default is not msgspec.NODEFAULT else _made(field)
        scalar = not isinstance(default, dict) and '"' not in path
        variable = f"RELEVO_{path.replace('.', '_').upper()}" if scalar else ""
        found.append(Setting(field.name, path, _type(hints[field.name]), default, variable, DESCRIPTIONS.get(path, "")))
    return found


def _made(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if callable(field.default_factory) else None


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return ", ".join(f'"{value}"' for value in typing.get_args(hint))
    arguments = [each for each in typing.get_args(hint) if each is not type(None)]
    base = typing.get_origin(hint) if typing.get_origin(hint) is dict else (arguments or [hint])[0]
    return {str: "text", int: "integer", float: "number", bool: "true or false", dict: "table"}.get(base, str(base))


def _first_sentence(struct: type[msgspec.Struct]) -> str:
    """msgspec gives a struct without a docstring none of its own; nothing then."""
    doc = inspect.cleandoc(struct.__doc__ or "")
    return doc.replace("``", "`").replace("\n", " ")

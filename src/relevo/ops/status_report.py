"""What ``relevo status --output json`` prints: a stable structure. Fields may be added, none changes its meaning.

Durations end in ``_s`` and are seconds by the database's clock. A count that reached its cap says so in ``…_capped``.
"""

from __future__ import annotations

import msgspec


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the outbox that were not handed over yet. ``oldest_age_s``: since the oldest was written."""

    count: int
    count_capped: bool
    oldest_age_s: float | None


class Relay(msgspec.Struct, frozen=True, kw_only=True):
    """A live relay. ``lanes``: how many it owns; ``epoch_min`` and ``epoch_max``: of those lanes.
    ``passing``: it hands nothing over, since consumers read this outbox themselves. ``problems`` and ``ages``: as its
    ``/ready`` had them when it last renewed its row."""

    process_id: str
    name: str
    host: str
    pid: int
    version: str
    age_s: float
    lanes: int
    epoch_min: int | None
    epoch_max: int | None
    passing: bool = False
    problems: dict[str, str] = {}
    ages: dict[str, dict[str, float | None]] = {}


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """``free``: owned by nobody; messages of those lanes wait until a relay takes them."""

    total: int
    free: int


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that takes nothing at the moment. Its messages wait; no attempt of theirs is spent."""

    topic: str
    reason: str
    paused_s: float


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that are not live. ``side``: ``relay`` or ``consumer``; ``consumer`` is empty on the relay's side.

    ``state``: ``waiting`` (a retry is due later), ``draining`` (being worked off) or ``parked`` (a person must look).
    ``messages``: waiting in the queues of these keys, the first ones included.
    """

    side: str
    consumer: str
    topic: str
    state: str
    keys: int
    messages: int
    messages_capped: bool
    oldest_age_s: float


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to be sent later. ``next_due_s``: until the first; below 0 when it is late."""

    count: int
    count_capped: bool
    next_due_s: float | None


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A live consumer process. ``lag``: messages of its shards that it has not settled, as it said last; ``None``: not
    known. ``waits_for``: why it has nothing to read from. ``notices``: the last warnings of this process about messages
    that are gone, or positions that began again. ``problems`` and ``ages``: as its ``/ready`` had them when it last
    renewed its row."""

    process_id: str
    name: str
    host: str
    pid: int
    version: str
    topics: list[str]
    age_s: float
    lag: int | None
    waits_for: str | None = None
    notices: list[str] = []
    problems: dict[str, str] = {}
    ages: dict[str, dict[str, float | None]] = {}


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that has been open for long. ``pid`` is ``None`` for a prepared one. ``query`` is cut."""

    pid: int | None
    age_s: float
    state: str
    query: str


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """Something a person paused. ``kind``: ``destination``, ``topic``, ``consumer``, ``lane`` or ``key``; ``topic`` and
    ``consumer`` say which key is meant. ``since``: UTC, ISO 8601."""

    kind: str
    name: str
    topic: str
    consumer: str
    who: str
    why: str
    since: str
    paused_s: float


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of one name in one state, but for those that are done: ``pending``, ``sent``, ``unknown``, ``failed``."""

    name: str
    state: str
    count: int
    oldest_age_s: float


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one consumer that are not published yet. ``refused``: those the broker refused; ``problem``: what
    it said of one of them."""

    consumer: str
    count: int
    refused: int
    oldest_age_s: float
    problem: str | None


class OutboxPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the outbox (PostgreSQL), once it was cut. ``rows``: an estimate. ``open``: it may still get rows.
    ``oldest_age_s``: since its first message was written."""

    name: str
    rows: int
    size_bytes: int
    open: bool
    unsettled: bool
    oldest_age_s: float | None


class SourceMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move between sources that was begun and has not ended. ``closed``: relays have no lanes at the moment, so that
    the source can change. ``marked``: messages that got a marker by it."""

    job_id: str
    origin: str
    target: str
    marked: int
    age_s: float
    closed: bool


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of consumers that reads this outbox itself, where there is no broker. ``members``: processes that live.
    ``behind``: messages before it. ``moved_age_s``: since its place was last stored. No message goes before it."""

    name: str
    topics: list[str]
    members: int
    behind: int
    behind_capped: bool
    oldest_age_s: float | None
    age_s: float
    moved_age_s: float | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment. ``warnings``: what a person should look at, in plain words."""

    database: str
    schema_version: int
    source: str
    pending: Pending
    lanes: Lanes
    relays: list[Relay]
    destinations_paused: list[Destination]
    held: list[Held]
    scheduled: Scheduled
    consumers: list[Consumer]
    long_transactions: list[Transaction]
    warnings: list[str]
    paused: list[Paused] = []
    effects: list[Effects] = []
    dead_letters: list[DeadLetters] = []
    partitions: list[OutboxPartition] = []
    source_move: SourceMove | None = None
    groups: list[ConsumerGroup] = []


def of(count: int, what: str) -> str:
    """``1 key``, ``2 keys``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def are(count: int, what: str, subject: int | None = None) -> str:
    """``1 key is``, ``2 keys are``; ``subject``: the number that the verb follows, if it is another one."""
    return f"{of(count, what)} {'is' if (count if subject is None else subject) == 1 else 'are'}"

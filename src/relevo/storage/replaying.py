"""Scripts of replays: read what was published again, remember how far it got, keep a key's arrivals behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID, uuid4

from relevo.ids import bucket_of
from relevo.message import Message
from relevo.script import Rows, Script, Statement
from relevo.storage.auditing import Act, record
from relevo.storage.holding import Claimed, KeyId

Mode = Literal["repair", "again", "into"]
KIND: Final = "replay"


@dataclass(frozen=True, slots=True)
class Window:
    """What of the outbox and its archive: published messages of ``topics`` with ``after < seq <= to_seq``, created in
    ``since <= t < until`` by the database's clock, of one ``key`` if given."""

    topics: Sequence[str]
    after: int
    to_seq: int
    since: datetime | None = None
    until: datetime | None = None
    key: bytes | None = None

    def params(self) -> dict[str, Any]:
        return {
            "topics": list(self.topics),
            "after": self.after,
            "to_seq": self.to_seq,
            "since": self.since,
            "until": self.until,
            "key": self.key,
        }


class Stored(NamedTuple):
    """A replay as it stands. ``positions``, ``failed``: by shard, the last position done, the first that failed."""

    job_id: UUID
    state: str
    filter: Mapping[str, Any]
    rate: float | None
    total: int | None
    done: int
    cursor: Mapping[str, Mapping[str, int]]
    reason: str
    actor: str
    consumer: str
    mode: Mode
    generation: int


def page(window: Window, after: int, limit: int) -> Script[Rows]:
    """Rows of ``seq`` and the thirteen message columns, in ``seq`` order."""
    return (yield Statement("replay.page", {**window.params(), "after": after, "limit": limit}))


def count(window: Window) -> Script[dict[str, int]]:
    """How many, by type."""
    rows = yield Statement("replay.count", window.params())
    return {row[0]: int(row[1]) for row in rows}


def end() -> Script[int]:
    """The newest ``seq``."""
    rows = yield Statement("replay.end")
    return int(rows[0][0])


def create(
    act: Act, mode: Mode, consumer: str, *, rate: float | None, total: int | None, keep: Mapping[str, Any] | None
) -> Script[UUID]:
    """A new job with its audit row, and what must not be purged meanwhile. It gets the
    consumer's next generation of the inbox; two that start at once collide on it, and one of them fails."""
    job_id, generation = uuid4(), 0
    if mode != "into":
        rows = yield Statement("replay.next_generation", {"consumer": consumer})
        generation = int(rows[0][0])
    yield Statement(
        "job.create",
        {
            "job_id": str(job_id),
            "kind": KIND,
            "filter": json.dumps(dict(act.filter or {}), sort_keys=True),
            "rate": rate,
            "total": total,
            "actor": act.actor,
            "reason": act.reason,
        },
    )
    yield Statement(
        "replay.create", {"job_id": str(job_id), "consumer": consumer, "mode": mode, "generation": generation}
    )
    if keep is not None:
        yield Statement("replay.keep", {"name": _keep_name(job_id), **keep})
    yield from record(act, total or 0, detail={"generation": generation}, job_id=job_id)
    return job_id


def find(job_id: UUID) -> Script[Stored | None]:
    rows = yield Statement("replay.find", {"job_id": str(job_id)})
    if not rows:
        return None
    row = rows[0]
    return Stored(UUID(row[0]), row[1], json.loads(row[2]), row[3], row[4], row[5], json.loads(row[6]), *row[7:12])


def claim(job_id: UUID, holder: UUID, lease_s: float) -> Script[bool]:
    """Become the process that works on it, or go on being it. False: another one is."""
    rows = yield Statement("replay.claim", {"job_id": str(job_id), "holder": str(holder), "lease_s": lease_s})
    return bool(rows)


@dataclass(frozen=True, slots=True)
class Failure:
    message: Message
    error_type: str | None
    error: str


def advance(
    job_id: UUID,
    holder: UUID,
    cursor: Mapping[str, Mapping[str, int]],
    done: int,
    failures: Sequence[Failure] = (),
    *,
    mended: Sequence[UUID] = (),
    state: str = "running",
) -> Script[bool]:
    """How far it got, in one transaction with what failed, and what failed before and ran now. False: another process
    works on it by now, or it was cancelled."""
    rows = yield Statement(
        "replay.advance",
        {
            "job_id": str(job_id),
            "holder": str(holder),
            "cursor": json.dumps(cursor, sort_keys=True),
            "done": done,
            "state": state,
        },
    )
    if not rows:
        return False
    if mended:
        yield Statement("replay.mended", {"job_id": str(job_id), "ids": [str(each) for each in mended]})
    for failure in failures:
        message = failure.message
        yield Statement(
            "replay.fail",
            {
                "job_id": str(job_id),
                "event_id": str(message.event_id),
                "topic": message.topic,
                "key": message.key,
                "error_type": failure.error_type,
                "error": failure.error,
            },
        )
    return True


def leave(job_id: UUID, holder: UUID, *, ended: bool) -> Script[None]:
    """Let go of it. ``ended``: nothing of the outbox is kept for it any more."""
    yield Statement("replay.release", {"job_id": str(job_id), "holder": str(holder)})
    if ended:
        yield from keep_no_more(job_id)


def failures(job_id: UUID, limit: int) -> Script[list[tuple[UUID, str, bytes | None, str | None, str]]]:
    """(event id, topic, key, error type, error) of what could not be run, the oldest first."""
    rows = yield Statement("replay.failures", {"job_id": str(job_id), "limit": limit})
    return [(UUID(row[0]), row[1], None if row[2] is None else bytes(row[2]), row[3], row[4]) for row in rows]


def failed_ids(job_id: UUID) -> Script[frozenset[UUID]]:
    """Messages that could not be run so far."""
    rows = yield Statement("replay.failed_ids", {"job_id": str(job_id)})
    return frozenset(UUID(row[0]) for row in rows)


def keep_no_more(job_id: UUID) -> Script[None]:
    """Nothing of the outbox is kept for it any more."""
    yield Statement("replay.keep_no_more", {"name": _keep_name(job_id)})


def hold_key(id: KeyId, job_id: UUID, holder: UUID, lease_s: float) -> Script[Claimed | None]:
    """Let arrivals of the key queue behind. ``None``: it is held for another reason, and stays as it is."""
    rows = yield Statement(
        "replay_keys.hold",
        {
            "consumer": id.consumer,
            "topic": id.topic,
            "key": id.key,
            "bucket": bucket_of(id.key, job_id),
            "reason": _reason(job_id),
            "holder": str(holder),
            "lease_s": lease_s,
        },
    )
    return Claimed(id, int(rows[0][0]), 0, False) if rows else None


def still_ours(claim: Claimed, lease_s: float) -> Script[bool]:
    """At the end of a handler's transaction: whether the key is still held by us; renews it."""
    rows = yield Statement(
        "replay_keys.still_ours",
        {
            "consumer": claim.id.consumer,
            "topic": claim.id.topic,
            "key": claim.id.key,
            "epoch": claim.epoch,
            "lease_s": lease_s,
        },
    )
    return bool(rows)


def let_go(job_id: UUID, holder: UUID | None = None) -> Script[list[tuple[str, bytes]]]:
    """The keys that a replay holds (``holder``: only if this process does): live at once where nothing arrived
    meanwhile. Returns the others, as (topic, key): the consumer's processes work them off, and they are live then."""
    found = yield from find(job_id)
    params = {
        "consumer": "" if found is None else found.consumer,
        "reason": _reason(job_id),
        "holder": None if holder is None else str(holder),
    }
    yield Statement("replay_keys.lock", params)  # before the look at their queues: arrivals wait here
    yield Statement("replay_keys.live", params)
    rows = yield Statement("replay_keys.let_go", params)
    return sorted((row[0], bytes(row[1])) for row in rows)


class Running(NamedTuple):
    """A transaction that may have found a key live before it was held. ``since_s``: how long it has been open. Another
    role's session tells only its ``pid``."""

    transaction: str
    pid: int
    user: str | None
    application: str | None
    state: str | None
    since_s: float | None

    def __str__(self) -> str:
        said = [self.state, f"for {self.since_s:.0f} s" if self.since_s is not None else None]
        said += [f"user {self.user}" if self.user else None, self.application and f"application {self.application}"]
        about = ", ".join(each for each in said if each)
        return f"pid {self.pid}" + (f" ({about})" if about else "")


def running(table: str) -> Script[list[Running]]:
    """Transactions that may have found a key live before it was held (PostgreSQL). When all of them have ended, nothing
    of the key is under way any more."""
    rows = yield Statement("replay_keys.running", {"table": table})
    return [Running(row[0], int(row[1]), row[2], row[3], row[4], row[5]) for row in rows]


def _reason(job_id: UUID) -> str:
    return f"replay {job_id}"


def _keep_name(job_id: UUID) -> str:
    return f"replay {job_id}"

"""``relevo parked`` as functions: what is held, and what an operator decides about it.

Every act is one transaction per key with its audit row. Acts on many keys are jobs: killed half-way and called again
with the same selection, they go on where they stood.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from relevo.errors import RefusedError, UsageError
from relevo.ports.database import Database
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import auditing, parking
from relevo.storage.auditing import Act, Job
from relevo.storage.holding import KeyId
from relevo.storage.parking import Acted, Busy, Done, Group, HeldKey, Queued, Selection

PAGE = 500
STEP_KEYS_MAX = 50
"""Keys per transaction of a job without a rate."""

Verb = Literal["redrive", "discard"]


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts and why; both stand in the audit."""

    actor: str
    reason: str = ""


@dataclass(slots=True)
class Tally:
    """What an act on many keys did. ``busy``: keys left alone, a process was draining them. ``cancelled``: somebody
    ended the job before it was through."""

    keys: int = 0
    messages: int = 0
    busy: int = 0
    job_id: UUID | None = None
    resumed: bool = False
    cancelled: bool = False
    per_side: dict[str, int] = field(default_factory=dict)


def whoami() -> str:
    """``user@host``, where nothing else is given."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_selection(selection: Selection, *, everything: bool) -> Selection:
    """Refuse an empty selection unless everything is meant, and everything together with a selection."""
    empty = not selection.document()
    if empty and not everything:
        raise UsageError(
            "nothing is selected: name an id, key, consumer, side, topic, error or age, or say --all if all of it is "
            "meant"
        )
    if everything and not empty:
        raise UsageError("--all and a selection exclude each other: leave out one of them")
    return selection


async def listing(database: Database, selection: Selection, *, state: str | None, limit: int) -> list[HeldKey]:
    """Up to ``limit`` held keys."""
    return await database.run(parking.page(selection, state=state, after={}, limit=limit), read_only=True)


async def groups(database: Database, selection: Selection, *, state: str | None, limit: int) -> list[Group]:
    """Everything that is selected, counted by what went wrong; up to ``limit`` groups."""
    return await database.run(parking.groups(selection, state=state, limit=limit), read_only=True)


async def count(database: Database, selection: Selection, *, state: str | None = "parked") -> Tally:
    """Exactly how many keys and messages an act on ``selection`` would touch now."""
    tally, after = Tally(), dict[str, Any]()
    while True:
        keys = await database.run(parking.page(selection, state=state, after=after, limit=PAGE), read_only=True)
        for key in keys:
            tally.keys += 1
            tally.messages += key.messages
            tally.per_side[key.id.side] = tally.per_side.get(key.id.side, 0) + 1
        if len(keys) < PAGE:
            return tally
        after = keys[-1].place


async def show(database: Database, selection: Selection, *, limit: int) -> tuple[HeldKey, list[Queued]]:
    """The one key that ``selection`` means, and the head of its queue. Raises ``RefusedError`` for none or several."""
    keys = await listing(database, selection, state=None, limit=2)
    if len(keys) != 1:
        raise RefusedError("no held key is selected" if not keys else "several keys are selected: name one of them")
    return keys[0], await database.run(parking.queue(keys[0].id, limit=limit), read_only=True)


async def redrive(
    database: Database,
    selection: Selection,
    operator: Operator,
    *,
    rate: float | None = None,
    report: Callable[[Tally, int | None], None] = lambda tally, total: None,
) -> Tally:
    """Let every parked key of ``selection`` drain, ``rate`` keys a second. Resumes an unfinished job of the same."""
    return await _job(database, selection, operator, "redrive", parking.free, rate, report)


async def discard(
    database: Database,
    selection: Selection,
    operator: Operator,
    *,
    rate: float | None = None,
    report: Callable[[Tally, int | None], None] = lambda tally, total: None,
) -> Tally:
    """Give up every message of every parked key of ``selection``; on the consumer's side the inbox says so."""

    def act(id: KeyId) -> Script[Done]:
        return parking.drop(id, None, "discarded")

    return await _job(database, selection, operator, "discard", act, rate, report)


async def drop_one(
    database: Database, id: KeyId, queued: Queued, operator: Operator, outcome: Literal["skipped", "discarded"]
) -> Acted:
    """Skip or discard one message. After a skip of its first message the rest of the key drains. Raises
    ``RefusedError`` if the key is being drained, or the message is not there any more or was replaced by an edit."""
    action = "parked.skip" if outcome == "skipped" else "parked.discard"
    event_id = str(queued.message.event_id)
    act = Act(action, operator.actor, operator.reason, {"event_id": event_id})

    def step() -> Script[Done]:
        done = yield from parking.drop(id, queued, outcome, then_free=outcome == "skipped")
        if isinstance(done, Acted):
            yield from auditing.record(act, done.messages, detail={**described(id), "event_id": event_id})
        return done

    return acted(await database.run(step()), id)


def acted(done: Done, id: KeyId) -> Acted:
    """What was done, or why it was not."""
    if isinstance(done, Acted):
        return done
    name = parking.readable(id.key)
    if isinstance(done, Busy):
        raise RefusedError(
            f"key {name!r} of {id.topic} is being drained right now: nothing was changed. Wait until it is parked "
            "again or live, or try again when its process is gone"
        )
    raise RefusedError(f"key {name!r} of {id.topic} is not held any more, or not as it was: look again")


def described(id: KeyId) -> dict[str, Any]:
    """A key in an audit row."""
    found = {"side": id.side, "topic": id.topic, "key": parking.readable(id.key)}
    return found | {"consumer": id.consumer} if id.consumer else found


async def _job(
    database: Database,
    selection: Selection,
    operator: Operator,
    verb: Verb,
    act_on: Callable[[KeyId], Script[Done]],
    rate: float | None,
    report: Callable[[Tally, int | None], None],
) -> Tally:
    act = Act(f"parked.{verb}", operator.actor, operator.reason, selection.document())
    total = (await count(database, selection)).keys
    job = await database.run(auditing.begin(act, rate=rate, total=total))
    tally = Tally(job_id=job.job_id, resumed=job.done > 0 or bool(job.cursor))
    step_keys = STEP_KEYS_MAX if rate is None else max(1, min(STEP_KEYS_MAX, int(rate / 4)))
    loop = asyncio.get_running_loop()
    began = loop.time()
    while await database.run(_step(selection, act, job, tally, act_on, step_keys)):
        probe("parked.stepped")
        report(tally, job.total)
        if rate is not None:
            await asyncio.sleep(max(0.0, began + (tally.keys + tally.busy) / rate - loop.time()))
    return tally


def _step(
    selection: Selection, act: Act, job: Job, tally: Tally, act_on: Callable[[KeyId], Script[Done]], limit: int
) -> Script[bool]:
    """Some keys, their audit row and how far the job got, in one transaction. False: nothing is left."""
    now = yield from auditing.locked(job.job_id)
    if now is None:
        tally.cancelled = True
        return False
    keys = yield from parking.page(selection, state="parked", after=now.cursor, limit=limit)
    if not keys:
        yield from auditing.finish(job.job_id)
        return False
    done_keys, messages, busy = [], 0, 0
    # Locks in the order in which relays take them when they settle, whatever the database's collation: no deadlock.
    for key in sorted(keys, key=lambda each: (each.id.side, each.id.consumer, each.id.topic, each.id.key)):
        done = yield from act_on(key.id)
        if isinstance(done, Acted):
            done_keys.append(described(key.id))
            messages += done.messages
        else:
            busy += isinstance(done, Busy)
    if done_keys:
        yield from auditing.record(act, messages, detail={"keys": done_keys}, job_id=job.job_id)
    yield from auditing.advance(job.job_id, cursor=keys[-1].place, done=len(done_keys))
    probe("parked.stepping")
    tally.keys += len(done_keys)
    tally.messages += messages
    tally.busy += busy
    return True

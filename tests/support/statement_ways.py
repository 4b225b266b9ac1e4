"""Ways to bring about the states of a ``World`` in which a process executes the statements that it seldom needs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from relevo.clients import database_for
from relevo.clients.replication import ReplicationConnection
from relevo.errors import RelevoError
from relevo.ops import parked
from relevo.settings import DatabaseSettings
from relevo.sources.wal.connecting import connected
from relevo.storage.parking import Selection
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.statement_faults import World

Way = Callable[["World"], Awaitable[None]]
TOPIC = "shop.order"
BYTES_MAX = 4_000
"""What the broker takes, in a world that refuses."""
OPERATOR = parked.Operator("t", "t")


async def refused(world: World) -> None:
    """The broker takes one message of a key not for its size, and one dead letter, which is larger than its message."""
    world.traffic("huge", "letter")
    await tidy(world)


async def tidy(world: World) -> None:
    """As an operator does: let each key that a relay parked try again, and the second time skip what is refused."""
    database = database_for(world.settings.database)
    try:
        for key in await parked.listing(database, Selection(side="relay"), state="parked", limit=100):
            selection = Selection(side="relay", topic=key.id.topic, key=key.id.key)
            with contextlib.suppress(RelevoError):
                if key.id.key not in world.tried:
                    world.tried.add(key.id.key)
                    await parked.redrive(database, selection, OPERATOR)
                else:
                    _, (first, *_) = await parked.show(database, selection, limit=1)
                    await parked.drop_one(database, key.id, first, OPERATOR, "skipped")
    except RelevoError:
        pass  # it was the statement of somebody's that failed
    finally:
        await database.aclose()


async def redrive(world: World) -> None:
    """Let everything that is parked at the consumer drain."""
    database = database_for(world.settings.database)
    try:
        await parked.redrive(database, Selection(side="consumer"), OPERATOR)
    finally:
        await database.aclose()


async def broker_away(world: World, seconds: float = 1.6) -> None:
    """The file of the embedded broker is locked for longer than a send may take."""
    path = world.settings.broker.url.removeprefix("embedded:")

    def lock() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as other:
            other.execute("begin exclusive")
            world.traffic("plain", "plain")
            world.struck_within(seconds)
            other.execute("rollback")

    await asyncio.to_thread(lock)


async def locked(world: World) -> None:
    """Somebody has rows of the outbox locked that a relay has sent and would mark."""
    await world.pause("pause", "destination", TOPIC)
    world.traffic()
    with psycopg.connect(world.settings.database.url) as connection:
        connection.execute("select from relevo_outbox where topic = %s and outcome is null for update", (TOPIC,))
        await world.pause("resume", "destination", TOPIC)
        await asyncio.to_thread(world.struck_within, 1.5)
        connection.rollback()


async def commits_lost(world: World) -> None:
    """Nobody is told what came of a batch."""
    world.faults.commits_lost = 1
    world.traffic(*["plain"] * 6)


async def _stopped_when(world: World, hows: tuple[str, ...], sql: str) -> None:
    """A stop once ``sql`` finds something of the traffic."""
    world.traffic(*hows)
    with contextlib.suppress(AssertionError):  # it was over too soon
        await eventually(lambda: world.query(sql), what=sql, timeout_s=5.0)
    await world.restart()


left_draining: Way = partial(
    _stopped_when, hows=("queue",), sql="select 1 from relevo_held_key where state = 'draining'"
)
left_in_queue: Way = partial(_stopped_when, hows=("slow", "plain") * 6, sql="select 1 from relevo_journal offset 3")


async def sliced(world: World) -> None:
    """A batch that takes longer than it may, or is stopped in its middle: the rest of it is not done."""
    world.traffic(*["quick"] * 12, "long", *["quick"] * 12)
    await asyncio.to_thread(world.struck_within, 1.0)
    if not world.faults.struck.is_set():
        await left_in_queue(world)


async def inside(world: World) -> None:
    """Somebody has a transaction open that looked at all partitions, while they are to be dropped."""
    with psycopg.connect(world.settings.database.url) as connection:
        connection.execute("select count(*) from relevo_outbox")
        await asyncio.to_thread(world.struck_within, 10.0)
        connection.rollback()


async def promoted(world: World) -> None:
    """The position was saved on another timeline, as before a standby's promotion."""

    async def between() -> None:
        world.query("update relevo_wal_position set timeline = timeline - 1")

    await world.restart(between)


async def former(world: World) -> None:
    """Another process still reads the slot when a relay starts."""
    held: list[ReplicationConnection] = []

    async def between() -> None:
        ((slot, lsn),) = world.query("select slot, commit_lsn::text from relevo_wal_position")
        held.append(await connected(DatabaseSettings(url=world.settings.database.url), answer_s=5.0))
        await held[0].start(slot, lsn, slot)

    try:
        await world.restart(between)
        await asyncio.to_thread(world.struck_within, 3.0)
    finally:
        for connection in held:
            connection.close()


async def new_group(world: World) -> None:
    """A consumer that was never there before, for a moment."""
    await world.another_consumer()


def messages(*hows: str) -> Way:
    async def send(world: World) -> None:
        world.traffic(*hows)

    return send


REFUSED = ("due", "heads", "key", "lock", "remove", "rest", "settle")
WAYS: dict[str, Any] = {
    **dict.fromkeys((f"relay_held.{each}" for each in REFUSED), refused),
    "mark.free": locked,
    "mark.xid": broker_away,
    "held.release": left_draining,
    **dict.fromkeys(("mark.hold", "wal.hold", "wal.hold_keys", "wal.lock_keys"), refused),
    "letters.refused": refused,
    **dict.fromkeys(("destinations.pause", "destinations.resume"), broker_away),
    "held.lock_key_soon": messages("queue"),
    "held.put_back": messages("again"),
    "held.later": messages("elsewhere"),
    "journal.count": messages("again", "elsewhere"),
    "inbox.find_many": commits_lost,
    "inbox.insert": messages("skip", "skip"),
    "inbox.take_back": sliced,
    "performing.hang": messages("hang"),
    "journal.hand_back": left_in_queue,
    "journal.forget_fresh": left_in_queue,
    "partition.inside": inside,
    "wal.timeline": promoted,
    "wal.terminate_former": former,
    **dict.fromkeys(("groups.create", "groups.topics_known"), new_group),
}
"""By statement. The same way serves all of them that are armed together."""

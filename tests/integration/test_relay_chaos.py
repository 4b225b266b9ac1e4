"""Two relays while everything happens at once: refusals, outages of topics and of the database, lost lanes, pauses,
keys that are freed. Whatever lands when, nothing is lost and nothing of a key passes an earlier message."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from relevo.clients import database_for
from relevo.errors import UnreachableError
from relevo.ports.database import Database
from relevo.storage import laning, pausing
from relevo.storage.pausing import Target
from tests.support.log_stores import log_store
from tests.support.pipelined import Pipelined
from tests.support.relays import Running, Store, postgres_store, running_relay, sqlite_store
from tests.support.waiting import eventually

TOPICS = ("shop.order", "shop.parcel")
KEYS = 4
ROUNDS = 40
FREE = (
    "update relevo_held_key set state = 'draining', due_at = null, attempts = 0, holder = null where state = 'parked'"
)


@pytest.fixture(params=["sqlite", "postgresql", "sqlite, log", "postgresql, log"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Both databases, read by both sources that share lanes."""
    place = tmp_path / "app.db" if request.param.startswith("sqlite") else request.getfixturevalue("pg_database")
    if request.param.endswith("log"):
        return log_store(place)
    return sqlite_store(place) if isinstance(place, Path) else postgres_store(place)


class Chaos:
    """``errors``: whether the relays' database fails now and then, before a transaction or after its commit."""

    def __init__(self, store: Store, database: Database, chance: random.Random) -> None:
        self.store, self.database, self.chance = store, database, chance
        self.bad: set[int] = set()
        self.log: list[Any] = []
        self.relays: list[Running] = []
        self.publishers: list[Pipelined] = []
        self.paused: list[Target] = []
        self.written = 0
        self.errors = False

    def publisher(self) -> Pipelined:
        publisher = Pipelined(self.chance, self.bad, log=self.log, fails=0.1)
        self.publishers.append(publisher)
        return publisher

    def join(self, relay: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.relays.append(relay)
        real = relay.database.run

        async def run(script: Any, **named: Any) -> Any:
            if self.errors and self.chance.random() < 0.02:
                script.close()
                raise UnreachableError("the database is away")
            result = await real(script, **named)
            if self.errors and self.chance.random() < 0.02:
                raise UnreachableError("the reply was lost")
            return result

        monkeypatch.setattr(relay.database, "run", run)

    async def write(self) -> None:
        for topic in TOPICS:
            self.store.fill(count := self.chance.randrange(1, 30), KEYS, topic, self.written)
            self.bad |= {number for number in range(self.written, self.written + count) if self.chance.random() < 0.05}
            self.written += count

    async def free(self) -> None:
        """An operator has mended some messages."""
        self.bad -= {number for number in self.bad if self.chance.random() < 0.7}
        self.store.do(FREE)

    async def lose_lanes(self) -> None:
        """As if a lease had run out."""
        ownership = self.chance.choice(self.relays).engine.ownership
        lost = {lane: epoch for lane, epoch in ownership.lanes.items() if self.chance.random() < 0.3}
        await self.database.run(laning.release(ownership.relay_id, lost))

    async def topic_away(self) -> None:
        for publisher in self.publishers:
            publisher.away ^= {self.chance.choice(TOPICS)}

    async def pause(self) -> None:
        topic, number = self.chance.choice(TOPICS), self.chance.randrange(KEYS)
        targets = (
            Target("destination", topic, topic=topic),
            Target("key", str(number), topic=topic, key=b"k%d" % number),
            Target("lane", "7", lane=7),
        )
        target = self.chance.choice(targets)
        if await self.database.run(pausing.add(target, "me@here", "a test")):
            self.paused.append(target)
        await self.look()

    async def resume(self) -> None:
        if self.paused:
            target = self.paused.pop(self.chance.randrange(len(self.paused)))
            await self.database.run(pausing.remove(target, "me@here", "a test"))
        await self.look()

    async def look(self) -> None:
        pauses = await self.database.run(pausing.load(), read_only=True)
        for relay in self.relays:
            relay.engine.take_pauses(pauses)

    async def round(self) -> None:
        acts: list[Callable[[], Awaitable[None]]] = [
            *(self.write, self.write, self.free, self.lose_lanes),
            *(self.topic_away, self.pause, self.resume, self.resume),
        ]
        self.errors = self.chance.random() < 0.5
        await self.chance.choice(acts)()
        for _ in range(self.chance.randrange(5)):  # how long until the next one: left to chance, asserted nowhere
            await asyncio.sleep(0.005)

    async def calm(self) -> None:
        self.errors = False
        self.bad.clear()
        for publisher in self.publishers:
            publisher.away.clear()
        while self.paused:
            await self.resume()

    def settled(self) -> bool:
        assert not any(relay.task.done() for relay in self.relays)
        self.store.do(FREE)
        held = self.store.query("select count(*) from relevo_held_key")[0][0]
        return not held and not self.store.unsettled()


@pytest.mark.parametrize("seed", range(1))
async def test_nothing_is_lost_or_overtaken(store: Store, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """FAILURES rows 10 and 11 together."""
    await run_chaos(store, monkeypatch, seed, ROUNDS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 108))
async def test_nothing_is_lost_or_overtaken_for_long(store: Store, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same, oftener."""
    await run_chaos(store, monkeypatch, seed, 4 * ROUNDS)


async def run_chaos(store: Store, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        database = database_for(store.settings)
        stack.push_async_callback(database.aclose)
        chaos = Chaos(store, database, chance)
        for _ in range(2):
            relay = await stack.enter_async_context(running_relay(store, chaos.publisher(), batch_max=7, tick_s=0.03))
            chaos.join(relay, monkeypatch)
        for _ in range(rounds):
            await chaos.round()
        await chaos.calm()
        await eventually(chaos.settled, what="everything went out", timeout_s=60, every_s=0.1)
    rows = store.query("select topic, key, payload from relevo_outbox order by seq")
    assert set(store.outcomes()) <= {"published"}
    for topic in TOPICS:
        for number in range(KEYS):
            key = b"k%d" % number
            wanted = [int(payload) for of, its, payload in rows if (of, bytes(its)) == (topic, key)]
            sent = [int(message.payload) for message in chaos.log if (message.topic, message.key) == (topic, key)]
            assert list(dict.fromkeys(sent)) == wanted

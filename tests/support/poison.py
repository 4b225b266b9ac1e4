"""Many keys, a few of which always fail, through a real relay, broker and consumer; then the fix and a redrive."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from datetime import timedelta
from typing import Any

from relevo import Backoff, Consumer, Event, Relay
from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.consumer import ConsumerRunner
from relevo.message import Message
from relevo.ops.parked import Operator, redrive
from relevo.settings import ConsumerSettings, Settings
from relevo.storage.parking import Selection
from tests.support.relays import Store
from tests.support.waiting import eventually


def fill(store: Store, topic: str, keys: int, events: int) -> None:
    """Message ``n`` belongs to key ``n modulo keys``."""
    connection = store.connect()
    for number in range(events):
        store.append(connection, b"k%d" % (number % keys), number, topic)
        if number % 5000 == 4999:
            connection.commit()
    connection.commit()
    connection.close()


def make_table(store: Store) -> None:
    identity = "integer generated always as identity" if store.is_postgres else "integer primary key autoincrement"
    store.do(f"create table effect (effect_seq {identity}, key integer, number integer)")


def handler(consumer: Consumer, store: Store, keys: int, broken: dict[int, bool]) -> None:
    mark = "%s" if store.is_postgres else "?"
    statement = f"insert into effect (key, number) values ({mark}, {mark})"

    @consumer.on("shop.order.*")
    def handle(event: Event[Message], tx: Any) -> None:
        number = json.loads(event.data.payload or b"0")
        if broken.get(number % keys):
            raise ValueError("poison")
        tx.execute(statement, (number % keys, number))


async def run_poison(
    store: Store, broker_url: str, *, topic: str, keys: int, events: int, poison_every: int, timeout_s: float
) -> float:
    """Returns the seconds until everything but the poisoned keys was through."""
    make_table(store)
    fill(store, topic, keys, events)
    await broker_for(broker_url, {}).ensure_topics([topic])
    broken = dict.fromkeys(range(0, keys, poison_every), True)
    consumer = Consumer("c" + secrets.token_hex(3), [topic], retry=Backoff(attempts=2, base=timedelta(milliseconds=1)))
    handler(consumer, store, keys, broken)
    settings = Settings(database=store.settings, consumer=ConsumerSettings(in_flight_max=256, lease_s=5.0))
    settings.broker.url = broker_url
    runner = ConsumerRunner(consumer, settings)
    per_key = events // keys

    def through() -> bool:
        done = store.query("select count(*) from effect")[0][0]
        waiting = store.query("select count(*) from relevo_held_message")[0][0]
        return bool(done == events - len(broken) * per_key and waiting == len(broken) * per_key)

    began = time.monotonic()
    async with Relay(settings):
        running = asyncio.create_task(runner.run())
        try:
            await eventually(through, what="all but the poison", timeout_s=timeout_s, every_s=0.2)
            took_s = time.monotonic() - began
            parked = store.query("select state, count(*) from relevo_held_key group by state")
            assert parked == [("parked", len(broken))], parked
            check_order(store, per_key, set(range(keys)) - set(broken))
            broken_keys = dict(broken)
            broken.clear()
            database = database_for(store.settings)
            done = await redrive(database, Selection(consumer=consumer.name), Operator("test"))
            await database.aclose()
            assert (done.keys, done.messages) == (len(broken_keys), len(broken_keys) * per_key)
            await eventually(
                lambda: store.query("select count(*) from relevo_held_key") == [(0,)],
                what="everything drained",
                timeout_s=timeout_s,
                every_s=0.1,
            )
        finally:
            runner.stop()
            await running
    return took_s


def check_order(store: Store, per_key: int, keys: set[int]) -> None:
    """Each of ``keys`` complete, each effect once and in order."""
    seen: dict[int, list[int]] = {}
    for key, number in store.query("select key, number from effect order by effect_seq"):
        seen.setdefault(key, []).append(number)
    assert {key: len(numbers) for key, numbers in seen.items() if key in keys} == dict.fromkeys(keys, per_key)
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())


def everything_is_complete(store: Store, *, keys: int, events: int) -> None:
    check_order(store, events // keys, set(range(keys)))
    assert store.query("select count(*) from effect") == [(events,)]

"""What does one poison key cost everybody else? PostgreSQL and Kafka; alternating runs with and without it.

``python -m benchmarks.poison [--events 50000] [--runs 3]``: on the relay's side one message is larger than the broker
takes, so its key is held with everything behind it; on the consumer's side the handler always fails for one key, with
retries, until it parks. The other keys' events count, from the start until the last of them is through. The promise is
a ratio of at least 0.90.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from benchmarks import drain, scratch
from benchmarks.contestant import SUBJECTS
from benchmarks.drain import Bench, _listener
from benchmarks.measure import machine, spread, table
from benchmarks.relays import OURS, Relay
from relevo import Backoff, Consumer, Event
from relevo.brokers import broker_for
from relevo.consumer import ConsumerRunner
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ops.migrate import migrate
from relevo.settings import DatabaseSettings, Settings

KEYS = 1_000
TOO_LARGE_BYTES = 1_200_000


@dataclass(frozen=True)
class Poisoned(Relay):
    """Of a backlog of ``whole`` events the broker refuses one, whose key stays behind."""

    whole: int = 0

    def fill(self, url: str, prefix: str, events: int, keys: int, size: int) -> None:
        super().fill(url, prefix, self.whole, keys, size)
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "with poison as (update relevo_outbox set payload = convert_to(repeat('x', %s), 'UTF8') "
                "where seq = (select min(seq) + 100 from relevo_outbox) returning seq, topic, key) "
                "select count(*) from relevo_outbox o join poison p on (o.topic, o.key) = (p.topic, p.key) "
                "where o.seq >= p.seq",
                (TOO_LARGE_BYTES,),
            ).fetchone()
        assert row == (self.whole - events,), f"{row} of its key wait, not {self.whole - events}"


def relay_run(database: str, broker: str, events: int, *, poisoned: bool) -> float:
    pids = {"postgres": _listener(database), "kafka": _listener(broker)}
    # Event 101 and those of its key and topic behind it do not arrive.
    behind = len(range(101, events + 1, math.lcm(drain.KEYS, len(SUBJECTS)))) if poisoned else 0
    relay = Poisoned("log", "log", whole=events) if poisoned else OURS["log"]
    return Bench(database, broker, events - behind).run(relay, pids).whole_per_s


async def consumer_run(database: str, broker_url: str, events: int, *, poisoned: bool) -> float:
    with scratch.database(database) as url:
        name = scratch.name_of(url)
        migrate(Settings(database=DatabaseSettings(url=url)))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table effect (number integer)")
            await _publish(broker_url, name, events)
            expected = events - (events // KEYS if poisoned else 0)
            runner = ConsumerRunner(_consumer(name, poisoned), _settings(url, broker_url))
            began = time.monotonic()
            running = asyncio.create_task(runner.run())
            try:
                while connection.execute("select count(*) from effect").fetchone() != (expected,):
                    await asyncio.sleep(0.05)
                took_s = time.monotonic() - began
            finally:
                runner.stop()
                await running
        return expected / took_s


def _settings(url: str, broker_url: str) -> Settings:
    settings = Settings(database=DatabaseSettings(url=url))
    settings.broker.url = broker_url
    return settings


def _consumer(topic: str, poisoned: bool) -> Consumer:
    consumer = Consumer(topic, [topic], retry=Backoff(attempts=4, base=timedelta(milliseconds=50)))

    @consumer.on("bench.order.*")
    def handle(event: Event[Message], tx: Any) -> None:
        number = int(event.data.payload or b"0")
        if poisoned and number % KEYS == 7:
            raise ValueError("poison")
        tx.execute("insert into effect (number) values (%s)", (number,))

    return consumer


async def _publish(broker_url: str, topic: str, events: int) -> None:
    from datetime import UTC, datetime

    broker = broker_for(broker_url, {})
    await broker.ensure_topics([topic])
    publisher = await broker.publisher(source="urn:relevo:bench")
    messages = [
        Message(
            event_id=uuid7(),
            type="bench.order.placed",
            topic=topic,
            payload=b"%d" % number,
            created_at=datetime.now(UTC),
            key=b"k%d" % (number % KEYS),
        )
        for number in range(events)
    ]
    assert not await publisher.publish(messages)
    await publisher.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--consumer-events", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sides", default="relay,consumer")
    arguments = parser.parse_args()
    database, broker = os.environ["RELEVO_TEST_POSTGRES_URL"], os.environ["RELEVO_TEST_KAFKA_URL"]
    sides = arguments.sides.split(",")
    print(f"machine: {machine()}")
    found: dict[tuple[str, bool], list[float]] = {}
    for number in range(arguments.runs):
        for poisoned in (False, True) if number % 2 == 0 else (True, False):
            for side in sides:
                if side == "relay":
                    rate = relay_run(database, broker, arguments.events, poisoned=poisoned)
                else:
                    rate = asyncio.run(consumer_run(database, broker, arguments.consumer_events, poisoned=poisoned))
                found.setdefault((side, poisoned), []).append(rate)
                print(f"  run {number + 1} {side} poisoned={poisoned}: {rate:,.0f}/s", flush=True)
    rows = [["side", "without", "with one poison key", "ratio of medians"]]
    for side in sides:
        clean, poison = found[side, False], found[side, True]
        ratio = statistics.median(poison) / statistics.median(clean)
        rows.append([side, spread(clean), spread(poison), f"{ratio:.2f}"])
    print("\n" + table(rows))


if __name__ == "__main__":
    main()

"""How fast does one consumer handle events? Inbox row and one upsert for each, on PostgreSQL (fsync on).

``python -m benchmarks.consume [--events 100000] [--runs 3] [--from memory,kafka] [--kinds one,batches,…] [--sync]``

Events of about 300 bytes on 10,000 keys, 12 shards; from a subscription that is loaded already (what the consumer and
the database cost), or from Kafka (with reading, acknowledging and everything else). Every run has a database, a topic
and a process of its own; kinds alternate, and their ratio is what counts. Measured from the first message taken to the
last one settled, with journal, held keys and everything else of the product; each effect must be there once. ``bare``
has the statements of ``pipeline`` without Relevo: a loop by hand, 100 messages in a transaction, from memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import logging
import os
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from benchmarks import scratch
from benchmarks.measure import machine, spread, table
from relevo import Consumer, Event, event
from relevo.brokers import broker_for
from relevo.consumer import ConsumerRunner
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ops.migrate import migrate
from relevo.ports.broker import BrokerCapabilities, Delivery
from relevo.settings import DatabaseSettings, Settings, load

KEYS, SHARDS, PAYLOAD_BYTES = 10_000, 12, 300
KINDS = ("one", "batches", "pipeline", "on_batch", "session", "bare")
BARE = 100
"""Messages in a transaction of ``bare``."""
UPSERT = (
    "insert into account (id, events, total) values (%s, 1, %s) "
    "on conflict (id) do update set events = account.events + 1, total = account.total + excluded.total"
)
UPSERT_ALL = (
    "insert into account (id, events, total) "
    "select id, count(*), sum(total) from unnest(%s::text[], %s::bigint[]) as new (id, total) group by id order by id "
    "on conflict (id) do update set events = account.events + excluded.events, total = account.total + excluded.total"
)


@event("bench.account.paid", key="account")
@dataclass(frozen=True)
class Paid:
    account: str
    amount: int
    note: str


def build(kind: str, topic: str, sync: bool) -> Consumer:
    """The consumer whose rate is asked for. ``one``: as without batches; ``batches``: no pipeline;
    ``session``: through SQLAlchemy."""
    consumer = Consumer("bench", [topic], batch=1 if kind == "one" else None, pipeline=kind == "pipeline")
    if kind == "on_batch":

        @consumer.on_batch(Paid)
        async def book_all(events: list[Event[Paid]], tx: psycopg.AsyncConnection[Any]) -> None:
            await tx.execute(UPSERT_ALL, ([e.data.account for e in events], [e.data.amount for e in events]))

    elif kind == "session":
        statement = text(UPSERT.replace("%s", ":id", 1).replace("%s", ":amount"))

        @consumer.on(Paid)
        async def book_by_session(event: Event[Paid], tx: AsyncSession) -> None:
            await tx.execute(statement, {"id": event.data.account, "amount": event.data.amount})

    elif sync:

        @consumer.on(Paid)
        def book_in_thread(event: Event[Paid], tx: psycopg.Connection[Any]) -> None:
            tx.execute(UPSERT, (event.data.account, event.data.amount))

    else:

        @consumer.on(Paid)
        async def book(event: Event[Paid], tx: psycopg.AsyncConnection[Any]) -> None:
            await tx.execute(UPSERT, (event.data.account, event.data.amount))

    return consumer


def messages(topic: str, events: int) -> list[Message]:
    now, found = datetime.now(UTC), []
    for number in range(events):
        key = f"a{number % KEYS}"
        body = json.dumps({"account": key, "amount": number % 100, "note": ""})[:-2]
        payload = f'{body}{"y" * (PAYLOAD_BYTES - len(body) - 2)}"}}'.encode()
        found.append(
            Message(
                event_id=uuid7(),
                type="bench.account.paid",
                topic=topic,
                payload=payload,
                created_at=now,
                key=key.encode(),
            )
        )
    return found


class Loaded:
    """A broker and its subscription at once: what is there is taken as fast as one likes."""

    capabilities = BrokerCapabilities(
        prefix_safe=True,
        ordered_by_key=True,
        keeps_history=True,
        settles_each=False,
        message_bytes_max=None,
        across_machines=False,
    )
    url = "loaded:"

    def __init__(self, loaded: Sequence[Message]) -> None:
        self._left = [
            Delivery(message=message, shard=f"s{number % SHARDS}", position=number, generation=1)
            for number, message in enumerate(loaded)
        ]
        self._left.reverse()

    async def subscribe(self, *_: object, **__: object) -> Loaded:
        return self

    async def take(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        if not self._left:
            await asyncio.sleep(timeout_s)
        taken = self._left[-max_messages:]
        del self._left[-max_messages:]
        taken.reverse()
        return taken

    async def settle(self, deliveries: Sequence[Delivery]) -> None: ...
    async def flush(self) -> None: ...
    async def hand_back(self, deliveries: Sequence[Delivery]) -> None: ...
    async def aclose(self) -> None: ...
    async def shard_count(self) -> int:
        return 1

    async def lag(self) -> Mapping[str, int]:
        return {f"s{number}": 0 for number in range(SHARDS)}

    def owns(self, delivery: Delivery) -> bool:
        return True

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def on_revoke(self, callback: object) -> None: ...


class Counted:
    """A broker whose subscription tells when its first message was taken, and when the last was settled."""

    def __init__(self, broker: Any, events: int, done: asyncio.Event) -> None:
        self._broker, self._events, self._done = broker, events, done
        self.capabilities, self.url = broker.capabilities, broker.url
        self.began = self.ended = 0.0
        self.cpu = 0.0

    async def subscribe(self, *arguments: Any, **options: Any) -> Any:
        subscription = await self._broker.subscribe(*arguments, **options)
        take, settle, left = subscription.take, subscription.settle, self._events

        async def taking(max_messages: int, timeout_s: float) -> Any:
            found = await take(max_messages, timeout_s)
            if found and not self.began:
                self.began, self.cpu = time.monotonic(), time.process_time()
            return found

        async def settling(deliveries: Sequence[Delivery]) -> None:
            nonlocal left
            await settle(deliveries)
            left -= len(deliveries)
            if left == 0:
                self.ended, self.cpu = time.monotonic(), time.process_time() - self.cpu
                self._done.set()

        subscription.take, subscription.settle = taking, settling
        return subscription


async def bare(url: str, loaded: Sequence[Message]) -> dict[str, float]:
    """The statements alone, by hand: what is left when Relevo, decoding and keys are taken away."""
    async with await psycopg.AsyncConnection.connect(url) as tx:
        await tx.execute("create table bare_inbox (id uuid primary key)")
        await tx.commit()
        began, cpu = time.monotonic(), time.process_time()
        for first in range(0, len(loaded), BARE):
            some = loaded[first : first + BARE]
            async with tx.pipeline():
                ids = [message.event_id for message in some]
                await tx.execute("insert into bare_inbox select unnest(%s::uuid[]) on conflict do nothing", (ids,))
                for number, message in enumerate(some, first):
                    await tx.execute(UPSERT, ((message.key or b"").decode(), number % 100))
                await tx.commit()
        took, cpu = time.monotonic() - began, time.process_time() - cpu
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"per_s": len(loaded) / took, "cpu_us": cpu / len(loaded) * 1e6, "rss_mb": rss}


async def child(kind: str, where: str, url: str, topic: str, events: int, sync: bool, profile: str | None) -> None:
    """One run, in this process; its figures as JSON."""
    if kind == "bare":
        print(json.dumps(await bare(url, messages(topic, events))))
        return
    if "RELEVO_BENCH_DEBUG" in os.environ:
        logging.basicConfig(level=logging.DEBUG)
    given = {name: value for name, value in os.environ.items() if name.startswith("RELEVO_CONSUMER_")}
    settings = load(os.devnull, environ=given, overrides={"database.url": url})
    if where == "kafka":
        settings.broker.url = os.environ["RELEVO_TEST_KAFKA_URL"]
    broker: Any = broker_for(settings.broker.url, {}) if where == "kafka" else Loaded(messages(topic, events))
    gc.freeze()  # a consumer does not have its messages in memory beforehand, for the collector to look through
    done = asyncio.Event()
    counted = Counted(broker, events, done)
    runner = ConsumerRunner(build(kind, topic, sync), settings, broker=counted)  # type: ignore[arg-type]
    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    running = asyncio.create_task(runner.run())
    finished = asyncio.create_task(done.wait())
    await asyncio.wait([running, finished], return_when=asyncio.FIRST_COMPLETED)
    if profiler and profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats(profile).print_stats(45)
    runner.stop()
    await running
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = counted.ended - counted.began
    print(json.dumps({"per_s": events / seconds, "cpu_us": counted.cpu / events * 1e6, "rss_mb": rss}))


@contextlib.contextmanager
def prepared(where: str, events: int) -> Iterator[tuple[str, str]]:
    """A database with Relevo's tables and the account table, and a topic, loaded if it is Kafka's."""
    with scratch.database(os.environ["RELEVO_TEST_POSTGRES_URL"]) as url:
        name = scratch.name_of(url)
        migrate(Settings(database=DatabaseSettings(url=url)))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table account (id text primary key, events bigint, total bigint)")
            connection.execute("checkpoint")
        if where == "kafka":
            asyncio.run(fill(name, events))
        try:
            yield url, name
        finally:
            if where == "kafka":
                client = _admin()  # it must outlive its answer
                client.delete_topics([name])[name].result(20)


def _admin() -> AdminClient:
    return AdminClient({"bootstrap.servers": os.environ["RELEVO_TEST_KAFKA_URL"].removeprefix("kafka://")})


async def fill(topic: str, events: int) -> None:
    client = _admin()
    client.create_topics([NewTopic(topic, SHARDS, 1)])[topic].result(20)
    publisher = await broker_for(os.environ["RELEVO_TEST_KAFKA_URL"], {}).publisher(source="urn:relevo:bench")
    made = messages(topic, events)
    for start in range(0, events, 10_000):
        assert not await publisher.publish(made[start : start + 10_000])
    await publisher.aclose()


def check(url: str, events: int, inbox: str) -> None:
    """Every event has its effect once, and the journal is empty."""
    with psycopg.connect(url) as connection:
        sql = f"select (select sum(events) from account), (select count(*) from {inbox}), "
        row = connection.execute(sql + "(select count(*) from relevo_journal)").fetchone()
    if row is None or (row[0], row[1], row[2]) != (events, events, 0):
        raise SystemExit(f"effects, inbox rows and journal rows are {row}, not {events}: the run does not count")


def run(kind: str, where: str, events: int, more: Sequence[str]) -> dict[str, float]:
    with prepared(where, events) as (url, topic):
        command = [sys.executable, "-m", "benchmarks.consume", "--child", kind, where, url, topic]
        done = subprocess.run([*command, "--events", str(events), *more], stdout=subprocess.PIPE, timeout=900)
        if done.returncode:
            raise SystemExit(f"the run of {kind} ended with {done.returncode}")
        check(url, events, "bare_inbox" if kind == "bare" else "relevo_inbox")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(results: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> str:
    rows = [["from", "kind", "events/s", "times `one`", "CPU µs/event of the consumer", "RSS MB"]]
    for (where, kind), runs in results.items():
        base = results.get((where, "one"), ())
        ratios = [mine["per_s"] / theirs["per_s"] for mine, theirs in zip(runs, base, strict=False)]
        figures = [spread([each[name] for each in runs]) for name in ("per_s", "cpu_us", "rss_mb")]
        rows.append([where, kind, figures[0], spread(ratios, 1) if ratios else "", *figures[1:]])
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--from", dest="where", default="memory,kafka")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sync", action="store_true", help="plain handlers, in threads")
    parser.add_argument("--profile", help="sort order of a profile of the consumer's process, on stderr")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, where, url, topic = arguments.child
        asyncio.run(child(kind, where, url, topic, arguments.events, arguments.sync, arguments.profile))
        return
    more = ["--sync"] if arguments.sync else []
    more += ["--profile", arguments.profile] if arguments.profile else []
    print(f"machine: {machine()}")
    print(f"events: {arguments.events:,} of {PAYLOAD_BYTES} bytes, {KEYS:,} keys, {SHARDS} shards; {vars(arguments)}\n")
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(arguments.runs):
        for where in arguments.where.split(","):
            for kind in arguments.kinds.split(","):
                if kind == "bare" and where != "memory":
                    continue
                found = run(kind, where, arguments.events // (5 if kind == "one" else 1), more)
                results.setdefault((where, kind), []).append(found)
                print(
                    f"  run {number + 1} {where} {kind}: {found['per_s']:,.0f}/s, {found['cpu_us']:.0f} µs", flush=True
                )
    print(f"\n{report(results)}")


if __name__ == "__main__":
    main()

"""faststream-outbox to Kafka: rows are leased in batches, a handler publishes each and waits for its confirm.

``relay.py setup URL`` makes its table; ``relay.py run URL BOOTSTRAP PREFIX WORKERS FETCH FLUSH LINGER_MS`` relays.
Runs in an environment of its own (requirements.txt), so it imports nothing of Relevo.
"""

from __future__ import annotations

import sys

import uvloop
from faststream import FastStream
from faststream.kafka import KafkaBroker
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

metadata = MetaData()
table = make_outbox_table(metadata, table_name="fs_outbox")


async def setup(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()


async def relay(engine: AsyncEngine, bootstrap: str, prefix: str, *sizes: str) -> None:
    workers, fetch, flush, linger_ms = map(int, sizes)
    outbox = OutboxBroker(engine, outbox_table=table, logger=None)
    kafka = KafkaBroker(
        bootstrap, acks="all", enable_idempotence=True, linger_ms=linger_ms, max_batch_size=262144, logger=None
    )

    async def undecoded(message: OutboxMessage) -> bytes:  # else the JSON would be decoded and encoded again
        return message.body

    @outbox.subscriber(
        "events",
        decoder=undecoded,
        max_workers=workers,
        fetch_batch_size=fetch,
        terminal_flush_batch_size=flush,
        min_fetch_interval=0.05,
    )
    async def publish(body: bytes, message: OutboxMessage) -> None:
        headers = message.headers
        await kafka.publish(
            message.body,
            topic=f"{prefix}.{headers['subject']}",
            key=headers["key"].encode(),
            headers={"id": message.message_id, "type": "bench.order.placed"},
        )

    await FastStream(outbox, on_startup=[kafka.connect], after_shutdown=[kafka.stop], logger=None).run()


def main(what: str, url: str, *rest: str) -> None:
    workers = int(rest[2]) if rest else 1
    engine = create_async_engine(url, pool_size=workers + 4, max_overflow=4)
    uvloop.run(setup(engine) if what == "setup" else relay(engine, *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])

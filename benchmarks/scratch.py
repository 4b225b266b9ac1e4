"""What a run has for itself, and leaves nothing of: a database, a topic, rows of the benchmarks' usual shape."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from relevo.brokers import broker_for

CONSUMER = "bench"
PAYLOAD_BYTES = 300
DROP_S = 30.0
"""A slot is active until its reader's connection is gone."""
FILL = (
    "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) "
    "select relevo_uuid7(), relevo_bucket_of(convert_to(k, 'UTF8'), null), %s, convert_to(k, 'UTF8'), "
    "'bench.order.placed', convert_to(rpad('{\"order_id\": ' || i || ', \"note\": \"', %s - 2, 'y') || '\"}', 'UTF8') "
    "from (select i, 'o' || i %% %s as k from generate_series(1, %s) as i) as made"
)


@contextmanager
def database(admin_url: str) -> Iterator[str]:
    """The URL of an empty database; it is dropped at the end with the replication slots on it."""
    name = f"bench_{secrets.token_hex(4)}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())
    try:
        yield urlsplit(admin_url)._replace(path=f"/{name}").geturl()
    finally:
        _drop(admin_url, name)


def name_of(url: str) -> str:
    """The name of a database; topics may begin with it."""
    return urlsplit(url).path[1:]


def _drop(admin_url: str, name: str) -> None:
    deadline = time.monotonic() + DROP_S
    while True:
        try:
            with psycopg.connect(admin_url, autocommit=True) as admin:
                admin.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", (name,)
                )
                admin.execute(f"drop database if exists {name} with (force)".encode())
            return
        except psycopg.Error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def fill(connection: psycopg.Connection, topic: str, events: int, keys: int) -> None:
    """``events`` rows for ``topic`` in one transaction."""
    connection.execute(FILL.encode(), (topic, PAYLOAD_BYTES, keys, events))


async def declare(url: str, topic: str) -> None:
    """The topic, and a queue for it where the broker keeps nothing otherwise."""
    broker = broker_for(url)
    await broker.ensure_topics([topic])
    if not broker.capabilities.keeps_history:
        await (await broker.subscribe(CONSUMER, [topic])).aclose()

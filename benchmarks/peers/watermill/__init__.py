"""Watermill (Go), its outbox split by key over 32 tables, each read by a handler of its own."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from benchmarks.contestant import Contestant, Unavailable, call, folder

HERE = Path(__file__).parent
SHARDS = 32
TABLES = [name for shard in range(SHARDS) for name in (f"watermill_s{shard}", f"watermill_offsets_s{shard}")]

# Watermill's own tables (DefaultPostgreSQLSchema, DefaultPostgreSQLOffsetsAdapter).
_SCHEMA = """
create table watermill_s{shard} ("offset" bigserial, uuid varchar(36) not null,
  created_at timestamp not null default current_timestamp, payload json, metadata json,
  transaction_id xid8 not null, primary key (transaction_id, "offset"));
create table watermill_offsets_s{shard} (consumer_group varchar(255) primary key, offset_acked bigint,
  last_processed_transaction_id xid8 not null);
"""
_INSERT = (
    "insert into watermill_s%s (uuid, payload, metadata, transaction_id) values (gen_random_uuid()::text, "
    "{body}::json, json_build_object('key', {key}, 'subject', {subject}), pg_current_xact_id())"
)


class Watermill(Contestant):
    insert: ClassVar[str] = (
        "execute format($$insert into %I (uuid, payload, metadata, transaction_id) values (gen_random_uuid()::text, "
        "$1::json, json_build_object('key', $2, 'subject', $3), pg_current_xact_id())$$, "
        f"'watermill_s' || substr({{key}}, 2)::int % {SHARDS}) using {{body}}, {{key}}, {{subject}}"
    )
    table: ClassVar[str] = ", ".join(TABLES)
    settings: ClassVar[str] = (
        f"Watermill 1.5.1 (watermill-sql 4.1.2, watermill-kafka 3.0.6, Go), {SHARDS} tables by key, a handler each, "
        "SubscribeBatchSize 1000, PollInterval 10 ms, RequiredAcks=WaitForAll. Idempotence off, as it comes: a shard "
        "has one message in flight, so no retry changes its order"
    )

    def ready(self) -> None:
        self._binary()

    def prepare(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for shard in range(SHARDS):
                connection.execute(_SCHEMA.format(shard=shard).encode())

    def append(self, connection: psycopg.Connection[Any], prefix: str, number: int) -> None:
        """To the table that ``insert`` would find by the key ``o…``."""
        statement = self.statement(_INSERT % (number % 10_000 % SHARDS))
        connection.execute(statement, self.values(prefix, number))

    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        return [str(self._binary()), "-database", url, "-brokers", bootstrap, "-prefix", prefix]

    def _binary(self) -> Path:
        """Built with the versions of go.mod, once a machine."""
        home = folder("peers") / self.name
        sources = b"".join((HERE / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
        binary = home / f"relay-{hashlib.sha256(sources).hexdigest()[:12]}"
        if not binary.exists():
            if shutil.which("go") is None:
                raise Unavailable("building Watermill: there is no go on this machine")
            print("building Watermill with Go", flush=True)
            call(["go", "build", "-mod=readonly", "-trimpath", "-o", binary, "."], "building Watermill", cwd=HERE)
        return binary

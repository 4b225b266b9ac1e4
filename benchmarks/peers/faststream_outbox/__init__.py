"""faststream-outbox: leases rows, hands each to a handler that publishes it with FastStream's Kafka broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import psycopg

from benchmarks.contestant import Contestant, call
from benchmarks.peers import environment

HERE = Path(__file__).parent


class FastStreamOutbox(Contestant):
    insert: ClassVar[str] = (
        "insert into fs_outbox (queue, payload, headers) values ('events', convert_to({body}, 'UTF8'), "
        "jsonb_build_object('subject', {subject}, 'key', {key}, 'correlation_id', gen_random_uuid()::text))"
    )
    table: ClassVar[str] = "fs_outbox"
    settings: ClassVar[str] = (
        "faststream-outbox 0.19.0 with aiokafka and uvloop, acks=all, idempotent. Backlog: 2 processes of 32 workers, "
        "fetch_batch_size 1000, terminal_flush_batch_size 50. Latency: 1 process of 16 workers, 200 and 10, linger 0, "
        "written with its NOTIFY. min_fetch_interval 0.05 s. It promises no order of a key among workers"
    )

    def ready(self) -> None:
        self._python()

    def prepare(self, url: str) -> None:
        call([self._python(), HERE / "relay.py", "setup", _asyncpg(url)], "making the table of faststream-outbox")

    def append(self, connection: psycopg.Connection[Any], prefix: str, number: int) -> None:
        with connection.transaction():
            super().append(connection, prefix, number)
            connection.execute("select pg_notify('outbox_fs_outbox', 'events')")

    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        sizes = ["16", "200", "10", "0"] if quick else ["32", "1000", "50", "5"]
        return [str(self._python()), str(HERE / "relay.py"), "run", _asyncpg(url), bootstrap, prefix, *sizes]

    def processes(self, quick: bool) -> int:
        return 1 if quick else 2

    def _python(self) -> Path:
        return environment(self.name, HERE / "requirements.txt", "3.12", "3.13", "3.11")


def _asyncpg(url: str) -> str:
    return "postgresql+asyncpg:" + url.partition(":")[2]

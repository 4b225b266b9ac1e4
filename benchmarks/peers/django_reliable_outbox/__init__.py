"""django-reliable-outbox: workers lease rows in batches and flush Kafka's producer for each message."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from benchmarks.contestant import Contestant, call
from benchmarks.peers import environment

HERE = Path(__file__).parent


class DjangoReliableOutbox(Contestant):
    insert: ClassVar[str] = (
        "insert into reliable_outbox_outboxmessage (message_id, kind, name, payload, headers, key, destination, "
        "status, attempts, max_attempts, backoff, locked_by, last_error, last_traceback) values (gen_random_uuid(), "
        "'event', {prefix} || '.' || {subject}, {body}::jsonb, jsonb_build_object(), {key}, 'kafka', 'pending', 0, 10, "
        "'exponential', '', '', '')"
    )
    table: ClassVar[str] = "reliable_outbox_outboxmessage"
    settings: ClassVar[str] = (
        "django-reliable-outbox 0.1.1 with its Kafka destination, acks=all, idempotent, linger 0, NOTIFY. Backlog: 8 "
        "workers as processes, BATCH_SIZE 100, LEASE_SECONDS 600. Latency: 4, BATCH_SIZE 10. Its value is an envelope "
        "around the body"
    )

    def ready(self) -> None:
        self._python()

    def prepare(self, url: str) -> None:
        tables: list[str | Path] = [self._python(), HERE / "worker.py", "migrate", *_database(url)]
        call(tables, "making the tables of django-reliable-outbox")

    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        batch = "10" if quick else "100"
        return [str(self._python()), str(HERE / "worker.py"), "outbox_worker", *_database(url), bootstrap, batch, "0"]

    def processes(self, quick: bool) -> int:
        return 4 if quick else 8

    def _python(self) -> Path:
        return environment(self.name, HERE / "requirements.txt", "3.12", "3.13")


def _database(url: str) -> list[str]:
    parts = urlsplit(url)
    return [
        *(parts.hostname or "127.0.0.1", str(parts.port or 5432), parts.username or "postgres", parts.password or ""),
        parts.path.removeprefix("/"),
    ]

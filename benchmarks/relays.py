"""The relays that are measured beside each other, by name: ours, by source, and others."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from benchmarks.contestant import NOTE, SUBJECTS, Contestant
from benchmarks.debezium import Debezium
from benchmarks.peers.django_reliable_outbox import DjangoReliableOutbox
from benchmarks.peers.faststream_outbox import FastStreamOutbox
from benchmarks.peers.watermill import Watermill
from relevo import Outbox, event
from relevo.ops.migrate import migrate
from relevo.settings import DatabaseSettings, RelaySettings, Settings

_outbox = Outbox(allow_autocommit=True)


@event("bench.order.placed", key="key")
@dataclass(frozen=True)
class Placed:
    n: int
    key: str
    note: str = NOTE


@dataclass(frozen=True)
class Relay(Contestant):
    """``source``: of ours; ``""`` for another relay on our tables."""

    source: str = ""

    insert: ClassVar[str] = (
        "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) values "
        "(relevo_uuid7(), relevo_bucket_of(convert_to({key}, 'UTF8'), null), {prefix} || '.' || {subject}, "
        "convert_to({key}, 'UTF8'), 'bench.order.placed', convert_to({body}, 'UTF8'))"
    )
    table: ClassVar[str] = "relevo_outbox"
    settings: ClassVar[str] = "defaults"

    @property
    def ours(self) -> bool:
        return bool(self.source)

    def prepare(self, url: str) -> None:
        relay = RelaySettings(source=self.source) if self.source else RelaySettings()  # type: ignore[arg-type]
        migrate(Settings(database=DatabaseSettings(url=url), relay=relay))

    def append(self, connection: psycopg.Connection[Any], prefix: str, number: int) -> None:
        """As an application does: ``outbox.add``."""
        _outbox.add(connection, Placed(number, f"o{number % 10_000}"), topic=f"{prefix}.{SUBJECTS[number % 3]}")

    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        config = folder / "relevo.toml"
        config.write_text(
            f'[database]\nurl = "{url}"\n[broker]\nurl = "kafka://{bootstrap}"\n[relay]\nsource = "{self.source}"\n'
        )
        return [sys.executable, "-m", "relevo", "--config", str(config), "relay"]

    def settled(self, url: str) -> int | None:
        if self.source != "mark":
            return None
        with psycopg.connect(url) as connection:
            row = connection.execute("select count(*) from relevo_outbox where outcome = 'published'").fetchone()
        return int(row[0]) if row else None


class Naive(Relay):
    """benchmarks/naive.py, on our tables."""

    settings: ClassVar[str] = "rows FOR UPDATE SKIP LOCKED by 100, one flush each, acks=all, idempotent, linger 5 ms"

    def prepare(self, url: str) -> None:
        """With the index on what is unsettled: those of the source ``mark``."""
        migrate(Settings(database=DatabaseSettings(url=url), relay=RelaySettings(source="mark")))

    def command(
        self, url: str, bootstrap: str, prefix: str, events: int, folder: Path, *, quick: bool = False
    ) -> list[str]:
        return [sys.executable, "-m", "benchmarks.naive", url, bootstrap, str(events)]


OURS = {source: Relay(source, source) for source in ("mark", "log", "wal")}
RELAYS: dict[str, Contestant] = {
    relay.name: relay
    for relay in (
        *OURS.values(),
        Naive("naive"),
        Debezium("debezium"),
        Watermill("watermill"),
        FastStreamOutbox("faststream-outbox"),
        DjangoReliableOutbox("django-reliable-outbox"),
    )
}

"""The relays that are measured beside each other: what each needs in the database, and how its process is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks import debezium
from relevo.ops.migrate import migrate
from relevo.settings import DatabaseSettings, RelaySettings, Settings

_OURS = (
    "insert into relevo_outbox (event_id, bucket, topic, key, type, payload) values "
    "(relevo_uuid7(), relevo_bucket_of(convert_to(k, 'UTF8'), null), prefix || '.' || subject, convert_to(k, 'UTF8'), "
    "'bench.order.placed', convert_to(body, 'UTF8'))"
)
_DEBEZIUMS = "insert into outbox (aggregatetype, aggregateid, type, payload) values (subject, k, 'x', body::jsonb)"

_FILL = """
create procedure bench_fill(prefix text, events int, keys int, size int) language plpgsql as $$
declare
  subjects text[] := array['order', 'payment', 'shipment'];
  subject text; k text; body text;
begin
  for i in 1 .. events loop
    subject := subjects[i % 3 + 1];
    k := 'o' || i % keys;
    body := rpad('{{"order_id": ' || i || ', "note": "', size - 2, 'y') || '"}}';
    {insert};
    commit;
  end loop;
end $$
"""


@dataclass(frozen=True)
class Relay:
    """``source``: of ours; ``""`` for the others."""

    name: str
    source: str = ""

    @property
    def ours(self) -> bool:
        return bool(self.source)

    def prepare(self, url: str) -> None:
        """Tables, and whatever has to be there before the first event is written."""
        if self.name == "debezium":
            debezium.prepare(url)
        else:
            migrate(self._settings(url))

    def fill(self, url: str, prefix: str, events: int, keys: int, size: int) -> None:
        """Events of ``size`` bytes, each in a transaction of its own, as an application writes them."""
        insert = _DEBEZIUMS if self.name == "debezium" else _OURS
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")  # of the filling only
            connection.execute(_FILL.format(insert=insert))
            connection.execute("call bench_fill(%s, %s, %s, %s)", (prefix, events, keys, size))
            connection.execute(f"vacuum analyze {'outbox' if self.name == 'debezium' else 'relevo_outbox'}")
            connection.execute("checkpoint")

    def command(self, url: str, bootstrap: str, prefix: str, events: int, folder: Path) -> list[str]:
        if self.name == "debezium":
            return debezium.command(url, bootstrap, prefix, folder)
        if self.name == "naive":
            return [sys.executable, "-m", "benchmarks.naive", url, bootstrap, str(events)]
        config = folder / "relevo.toml"
        config.write_text(
            f'[database]\nurl = "{url}"\n[broker]\nurl = "kafka://{bootstrap}"\n[relay]\nsource = "{self.source}"\n'
        )
        return [sys.executable, "-m", "relevo", "--config", str(config), "relay"]

    def settled(self, url: str) -> int | None:
        """How many events are settled, where that is said of each."""
        if self.source != "mark":
            return None
        with psycopg.connect(url) as connection:
            row = connection.execute("select count(*) from relevo_outbox where outcome = 'published'").fetchone()
        return int(row[0]) if row else None

    def drop(self, url: str) -> None:
        """What would outlive the database."""
        if self.name == "debezium":
            debezium.drop(url)
        elif self.source == "wal":
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
                    "where database = current_database() and not active"
                )

    def _settings(self, url: str) -> Settings:
        relay = RelaySettings(source=self.source) if self.source else RelaySettings()  # type: ignore[arg-type]
        return Settings(database=DatabaseSettings(url=url), relay=relay)


RELAYS = {
    relay.name: relay
    for relay in (
        Relay("mark", "mark"),
        Relay("log", "log"),
        Relay("wal", "wal"),
        Relay("naive"),
        Relay("debezium"),
    )
}

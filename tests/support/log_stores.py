"""Databases that are read by the source ``log``."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from relevo.ports.database import Database
from relevo.ports.source import Source
from relevo.sources.log.source import LogSource
from tests.support.relays import Store
from tests.support.schema import create_schema
from tests.support.waiting import eventually

_CURSOR = """
select count(*) from relevo_outbox o join relevo_cursor c on c.lane = (o.bucket & 63) and c.topic_group = coalesce(
  (select g.topic_group from relevo_cursor g where g.lane = (o.bucket & 63) and g.topic_group = o.topic), '*')
where o.settled_at is null and not (o.seq <= c.high_water{visible})
"""


def unsettled_by_cursors(url: str) -> str:
    """A query that counts the rows that have no marker and that their lane's cursor has not passed."""
    on_postgres = url.startswith("postgresql")
    visible = " and pg_visible_in_snapshot(o.tx, cast(c.snapshot as pg_snapshot))" if on_postgres else ""
    return _CURSOR.format(visible=visible)


class LogStore(Store):
    """As ``Store``: a row is settled by its marker, or by its lane's cursor."""

    def unsettled(self) -> int:
        return int(self.query(unsettled_by_cursors(self.url))[0][0])

    def outcomes(self) -> dict[str | None, int]:
        """What was simply published has no marker: it is what its cursor has passed."""
        found, unsettled = super().outcomes(), self.unsettled()
        published = found.pop(None, 0) - unsettled + found.pop("published", 0)
        return found | ({"published": published} if published else {}) | ({None: unsettled} if unsettled else {})

    async def all_over(self) -> None:
        """Wait until everything is settled and, as retention wants it, every stored cursor has seen every transaction
        end. A transaction of whoever else uses the cluster puts that off. To be awaited while a relay runs."""
        await eventually(lambda: self.unsettled() == 0, what="all settled")
        if self.is_postgres:
            await eventually(
                lambda: self.query(
                    "select coalesce(min(pg_snapshot_xmin(snapshot::pg_snapshot)::text::bigint) > "
                    "(select max(tx::text::bigint) from relevo_outbox), false) from relevo_cursor"
                )[0][0],
                what="every cursor has passed every transaction",
                timeout_s=180,
            )

    def source(self, database: Database, relay_id: UUID, lease_s: float) -> Source:
        return LogSource(database, relay_id, 64, lease_s=lease_s)


def log_store(place: Path | str) -> LogStore:
    """A fresh database with Relevo's tables: a file (SQLite) or a URL (PostgreSQL)."""
    create_schema(str(place), source="log")
    return LogStore(f"sqlite:///{place}" if isinstance(place, Path) else place)

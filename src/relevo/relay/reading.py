"""Which source a relay reads with, and the ownership that goes with it: the one place that knows them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from relevo.errors import ConfigError
from relevo.ports.database import Database
from relevo.ports.source import Source
from relevo.relay.ownership import Ownership
from relevo.relay.single import SingleReader
from relevo.runtime.clock import Clock
from relevo.settings import Settings
from relevo.sources.log.passing import PassingSource
from relevo.sources.log.source import LogSource
from relevo.sources.mark.source import MarkSource
from relevo.sources.wal.connecting import connector
from relevo.sources.wal.lease import ReaderLease
from relevo.sources.wal.source import WalSource
from relevo.storage import laning, moving, slotting


async def reading(
    database: Database,
    settings: Settings,
    relay_id: UUID,
    name: str,
    *,
    wake: Callable[[], None],
    detail: Callable[[], dict[str, Any]] = dict,
    clock: Clock,
    passing: bool = False,
) -> tuple[Source, Ownership]:
    """Source and ownership for one relay process. ``wake``: called when a source that need not poll has something.
    ``passing``: nothing is to be handed over, since consumers read this outbox themselves. Raises ``ConfigError`` for a
    source this version has not got, or that cannot be read so."""
    relay = settings.relay
    lane_count = await database.run(laning.lane_count(), read_only=True)
    # What the tables say, not the settings: those may name the source that the tables were moved from.
    stored = (await database.run(moving.stands(), read_only=True)).source
    common = (database, relay_id, name, lane_count, relay.lease_s, relay.send_timeout_s, detail, clock)
    if passing:
        if stored != "log":
            raise ConfigError(
                "broker.url leads to the tables of database.url: consumers read this outbox themselves, which they can "
                f"only as a log, and it is read as {stored!r}. Run: relevo source move log"
            )
        return PassingSource(database, relay_id, lane_count, lease_s=relay.lease_s), Ownership(*common, source=stored)
    if stored == "mark":
        return MarkSource(database, relay_id, lane_count, lease_s=relay.lease_s), Ownership(*common, source=stored)
    if stored == "log":
        return LogSource(database, relay_id, lane_count, lease_s=relay.lease_s), Ownership(*common, source=stored)
    if stored == "wal":
        if database.dialect != "postgresql":
            raise ConfigError(
                "relay.source = 'wal' reads PostgreSQL's write-ahead log; database.url is another database"
            )
        slot = await database.run(slotting.slot_name(), read_only=True)
        lease = ReaderLease(database, slot, relay_id, relay.lease_s, clock.seconds)
        source = WalSource(database, lease, lane_count, connector(database, settings.database, lease), wake)
        return source, SingleReader(*common, source=stored, lease=lease)
    raise ConfigError(f"relay.source = {stored!r} is not known: use 'mark', 'log' or 'wal'")

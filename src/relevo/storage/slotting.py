"""Scripts of the replication slot itself: what the server says of it, making it, dropping it, doing without it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from relevo.script import Script, Statement


@dataclass(frozen=True, slots=True)
class Server:
    """What the server says of itself and of the publication. ``table``: (schema, name) of the outbox, ``None`` without
    one. ``inserts``: ``None`` where there is no publication; ``via_root``: it names the outbox, not its partitions.
    ``may_alter``: it is ours, or there is none."""

    database: str
    role: str
    version: int
    wal_level: str
    standby: bool
    may_replicate: bool
    slots_max: int
    slots: int
    table: tuple[str, str] | None
    inserts: bool | None
    via_root: bool | None
    has_outbox: bool
    may_alter: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """What the server says of the slot. ``confirmed``: as an LSN, ``None`` while it is being made. ``behind``: bytes of
    WAL it keeps back; ``safe``: bytes until it may be lost, ``None`` for no limit."""

    plugin: str
    database: str
    active_pid: int | None
    confirmed: int | None
    status: str | None
    invalid: str | None
    behind: int | None
    safe: int | None


def slot_name() -> Script[str]:
    """The name of slot and publication of this installation."""
    rows = yield Statement("wal.names")
    return str(rows[0][0])


def server(slot: str) -> Script[Server]:
    rows = yield Statement("wal.server", {"slot": slot})
    values = list(rows[0])
    values[8:10] = [(values[8], values[9]) if values[9] else None]
    return Server(*values)


def find(slot: str) -> Script[Slot | None]:
    rows = yield Statement("wal.slot", {"slot": slot})
    return Slot(*rows[0]) if rows else None


def create(slot: str, version: int) -> Script[None]:
    """Make the slot; waits for transactions that run now. Alone in its transaction."""
    yield Statement("wal.create_failover_slot" if version >= 170_000 else "wal.create_slot", {"slot": slot})


def drop(slot: str) -> Script[bool]:
    """Drop the slot; false if there was none. Its reader must be gone."""
    return bool((yield Statement("wal.drop_slot", {"slot": slot})))


def begin(slot: str, system: tuple[str, int], lsn: int) -> Script[None]:
    """The slot is new and begins at ``lsn``: nothing before it is to be expected, nobody reads it yet."""
    yield Statement("wal.begin", {"slot": slot, "system_id": system[0], "timeline": system[1], "lsn": lsn})


def forget(slot: str) -> Script[None]:
    """Without its row nobody can become the reader."""
    yield Statement("wal.forget", {"slot": slot})


def recover(after: int, limit: int) -> Script[tuple[int, int]]:
    """Copy up to ``limit`` rows behind ``after`` that are not known to be settled: (last seq, how many)."""
    rows = yield Statement("wal.recover", {"after": after, "limit": limit})
    last, count = rows[0]
    return int(last if last is not None else after), int(count)


def drop_publication() -> Script[None]:
    yield Statement("wal.drop_publication")


@dataclass(frozen=True, slots=True)
class Listed:
    """One slot of this server with our plugin. ``behind``: bytes of WAL it keeps; ``safe``: bytes until it is lost."""

    name: str
    database: str
    active_pid: int | None
    status: str | None
    behind: int | None
    safe: int | None


def listing() -> Script[list[Listed]]:
    return [Listed(*row) for row in (yield Statement("wal.slots"))]


def terminate_former(slot: str, holder: UUID, epoch: int) -> Script[None]:
    """End the connection of the reader before us, unless the lease has gone to somebody else by now."""
    yield Statement("wal.terminate_former", {"slot": slot, "holder": holder, "epoch": epoch})


def terminate(slot: str) -> Script[None]:
    yield Statement("wal.terminate", {"slot": slot})

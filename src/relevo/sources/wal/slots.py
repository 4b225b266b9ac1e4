"""What can be wrong with a slot, in plain words, each with what to do. Pure."""

from __future__ import annotations

from relevo.storage.slotting import Server, Slot
from relevo.storage.waling import Stored, lsn_text

OLDEST_VERSION = 140_000

FALLBACK = (
    "Nothing that stands in the table is lost: `relevo slot recover` makes a new slot and sends from the table what is "
    "not known to be settled (some of it a second time). Events that were emitted without a table and not read yet "
    "went with the slot"
)


def server_problem(server: Server) -> str | None:
    """Why no slot can be used or made on this server by this role."""
    if server.version < OLDEST_VERSION:
        return f"the source 'wal' needs PostgreSQL 14 or later, this is {server.version // 10_000}"
    if server.standby:
        return "this server is a standby: point Relevo at the primary"
    if server.wal_level != "logical":
        return (
            f"wal_level is {server.wal_level!r}, and replication slots for logical decoding need 'logical'. Run: alter "
            "system set wal_level = 'logical'; then restart PostgreSQL. Until then use relay.source = 'mark'"
        )
    if not server.may_replicate:
        return (
            f"the role {server.role!r} may not replicate. As a superuser run: alter role "
            f'"{server.role}" replication (or grant what your host has for it, such as rds_replication)'
        )
    return None


def publication_problem(name: str, server: Server) -> str | None:
    """What the publication lacks."""
    if server.table is None:
        return "the outbox table is missing. Run: relevo migrate"
    if server.inserts is None:
        return (
            f"the publication {name} is missing: what was written without it cannot be read from the log. Run: relevo "
            "slot recover (or, if the slot was never made: relevo slot create)"
        )
    if not server.inserts or not server.via_root or not server.has_outbox:
        return (
            f"the publication {name} does not publish inserts into the outbox under the outbox's own name. Drop it and "
            "run `relevo slot recover`; it must say publish = 'insert', publish_via_partition_root = true"
        )
    return None


def room_problem(server: Server) -> str | None:
    """Why no further slot fits."""
    if server.slots >= server.slots_max:
        return (
            f"all {server.slots_max} replication slots of this server are taken (max_replication_slots). Drop one that "
            "nobody reads (`relevo slot list` shows them), or raise the setting and restart PostgreSQL"
        )
    return None


def slot_problem(
    name: str, server: Server, slot: Slot | None, stored: Stored | None, system: tuple[str, int] | None
) -> str | None:
    """Why the stream cannot go on where the position row stands. ``system``: identifier and timeline, if known."""
    if stored is not None and system is not None and stored.system_id != system[0]:
        return (
            f"this is another cluster (system identifier {system[0]}) than the one the position of {name} comes from "
            f"({stored.system_id}): the database was restored or copied, and WAL positions mean nothing here. "
            f"{FALLBACK}"
        )
    if stored is not None and system is not None and system[1] < stored.timeline:
        return (
            f"the position of {name} is of timeline {stored.timeline}, and this server is on {system[1]}: it is an "
            "older primary that was left behind by a failover. Point Relevo at the present one"
        )
    promoted = stored is not None and system is not None and system[1] > stored.timeline
    if slot is None:
        if stored is None:
            return f"the replication slot {name} does not exist. Run: relevo slot create"
        why = (
            f"a standby was promoted (timeline {stored.timeline}, now {system[1] if system else '?'}) without "
            "the slot: only failover slots of PostgreSQL 17 go along"
            if promoted
            else "somebody dropped it"
        )
        return f"the replication slot {name} is gone: {why}. {FALLBACK}"
    if slot.plugin != "pgoutput" or slot.database != server.database:
        return (
            f"the replication slot {name} belongs to database {slot.database!r} and plugin {slot.plugin!r}, not to us. "
            "Drop it, or give this installation another prefix"
        )
    if slot.status == "lost" or slot.invalid:
        return (
            f"the replication slot {name} is lost ({slot.invalid or 'wal_removed'}): the server removed WAL that it "
            f"needed, as max_slot_wal_keep_size allows it to when nobody reads for long. {FALLBACK}"
        )
    if stored is None:
        return (
            f"the replication slot {name} is there, but its position row is not: the tables were made anew, or the row "
            f"was deleted. {FALLBACK}"
        )
    if slot.confirmed is not None and slot.confirmed > stored.position.lsn:
        return (
            f"the replication slot {name} stands at {lsn_text(slot.confirmed)}, behind us at "
            f"{lsn_text(stored.position.lsn)} there may be events that it will not send: it was dropped and made anew, "
            f"or advanced by hand, or the tables come from a backup. {FALLBACK}"
        )
    return None

"""Scripts for lanes and the relays that share them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relevo.errors import SchemaError
from relevo.script import Script, Statement
from relevo.storage import moving, processes
from relevo.storage.moving import Stands


@dataclass(frozen=True, slots=True)
class Renewed:
    """``living``: the relays alive, this one among them. ``kept``: lanes whose lease was extended. ``stands``: what the
    tables are read by, and whether a move keeps relays from their lanes."""

    living: Collection[UUID]
    kept: Collection[int]
    stands: Stands


def lane_count() -> Script[int]:
    """The number of lanes of this installation."""
    rows = yield Statement("lanes.count")
    if not rows:
        raise SchemaError()
    return int(rows[0][0])


def renew(identity: Mapping[str, Any], lanes: Mapping[int, int], lease_s: float) -> Script[Renewed]:
    """Say that this relay lives, extend the leases of its ``lanes`` (lane → epoch), and see who else lives.

    ``identity``: what ``processes.register`` wants to know of a process beside its role.
    """
    yield from processes.register(role="relay", topics=(), lease_s=lease_s, **identity)
    living = yield Statement("relays.living")
    kept = yield Statement("lanes.renew", {**owned(identity["process_id"], lanes), "lease_s": lease_s})
    stands = yield from moving.stands()
    return Renewed([UUID(str(row[0])) for row in living], [int(row[0]) for row in kept], stands)


def acquire(holder: UUID, wanted: Collection[int], lease_s: float, source: str | None = None) -> Script[dict[int, int]]:
    """Take those of ``wanted`` that are free or expired; their new epochs by lane.

    ``source``: what they will be read with. None are taken if the tables are read by another, or are being moved. That
    is looked at with the lanes in hand: a move changes the source while it has them all.
    """
    rows = yield Statement("lanes.acquire", {"holder": holder, "wanted": sorted(wanted), "lease_s": lease_s})
    taken = {int(lane): int(epoch) for lane, epoch in rows}
    if taken and source is not None:
        stands = yield from moving.stands()
        if stands.moving or stands.source != source:
            yield from release(holder, taken)
            return {}
    return taken


def release(holder: UUID, lanes: Mapping[int, int]) -> Script[None]:
    """Give lanes back, so that the next owner need not wait for the lease."""
    yield Statement("lanes.release", owned(holder, lanes))


def leave(holder: UUID, lanes: Mapping[int, int]) -> Script[None]:
    """Give everything back and be forgotten."""
    yield Statement("lanes.release", owned(holder, lanes))
    yield from processes.leave(holder)
    yield from processes.forget_dead()
    yield Statement("destinations.forget", {"process_id": holder})


def lock(holder: UUID, lanes: Mapping[int, int]) -> Script[set[int]]:
    """Lock the rows of ``lanes`` against a takeover until this transaction ends; returns those that are still ours.

    ``FOR SHARE``, not a plain read: a takeover that commits between a check and a write would load its held keys
    before ours are there (HARD 2).
    """
    ours, _ = yield from lock_with_xid(holder, lanes)
    return ours


def lock_with_xid(holder: UUID, lanes: Mapping[int, int]) -> Script[tuple[set[int], int]]:
    """As ``lock``, and this transaction's xid (0 on SQLite, or when none of the lanes is ours)."""
    rows = yield Statement("lanes.lock", owned(holder, lanes))
    return {int(row[0]) for row in rows}, int(rows[0][1]) if rows else 0


def owned(holder: UUID, lanes: Mapping[int, int]) -> dict[str, Any]:
    """Statement parameters for 'these lanes at these epochs, held by me'."""
    return {"holder": holder, "lanes": list(lanes), "epochs": list(lanes.values())}

"""Scripts of duties: work that one process does for all, under a lease with an epoch, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from relevo.errors import LostOwnershipError
from relevo.script import Script, Statement

MOVER = "mover"
"""Moves scheduled messages into the outbox when they are due."""
PURGE = "purge"
"""Deletes or archives what retention says."""
MOVE = "source.move"
"""Moves the tables from one source to another."""


@dataclass(frozen=True, slots=True)
class Duty:
    """A duty in hand. ``done_age_s``: seconds since it was last done, ``None`` if never."""

    name: str
    holder: UUID
    epoch: int
    done_age_s: float | None


def take(name: str, holder: UUID, lease_s: float) -> Script[Duty | None]:
    """Take the duty or renew it, until ``lease_s`` seconds from now; ``None`` while somebody else has it."""
    rows = yield Statement("duty.take", {"name": name, "holder": str(holder), "lease_s": lease_s})
    if not rows:
        return None
    epoch, done_age_s = rows[0]
    return Duty(name, holder, int(epoch), None if done_age_s is None else float(done_age_s))


def hold(duty: Duty) -> Script[None]:
    """Lock the duty until the surrounding transaction ends; raises ``LostOwnershipError`` if somebody took it over."""
    rows = yield Statement("duty.lock", _params(duty))
    if not rows:
        raise LostOwnershipError(f"the duty {duty.name!r} was taken over by another process")


def done(duty: Duty) -> Script[None]:
    """Remember when it was done, so that the next owner need not do it again at once."""
    yield Statement("duty.done", _params(duty))


def leave_one(duty: Duty) -> Script[None]:
    """Give this duty up."""
    yield Statement("duty.leave_one", _params(duty))


def leave(holder: UUID) -> Script[None]:
    """Give every duty of ``holder`` up, so that others need not wait for the lease."""
    yield Statement("duty.leave", {"holder": str(holder)})


def _params(duty: Duty) -> dict[str, object]:
    return {"name": duty.name, "holder": str(duty.holder), "epoch": duty.epoch}

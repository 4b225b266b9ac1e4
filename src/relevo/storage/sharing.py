"""A fair share of the lanes, without a coordinator. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from uuid import UUID


def fair_share(me: UUID, living: Collection[UUID], lane_count: int) -> set[int]:
    """The lanes due to ``me`` by rendezvous hashing: each lane goes to the living process with the highest hash, so one
    that joins or leaves moves no lane between the others (Thaler and Ravishankar, 1998)."""
    processes = sorted({*living, me}, key=lambda process: process.bytes)

    def weight(lane: int, process: UUID) -> bytes:
        return hashlib.blake2b(process.bytes + lane.to_bytes(2, "big"), digest_size=8).digest()

    return {lane for lane in range(lane_count) if max(processes, key=lambda process: weight(lane, process)) == me}

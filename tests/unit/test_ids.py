"""Identities and buckets."""

from __future__ import annotations

import hashlib
import threading
import time
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo import ids


def test_uuid7_format_and_time() -> None:
    """Version 7, RFC variant, 48 bits of this moment."""
    before = time.time_ns() // 1_000_000
    made = ids.uuid7()
    assert (made.version, made.variant) == (7, RFC_4122)
    # The generator may run ahead of the clock by the milliseconds it borrowed when a counter overflowed.
    assert before <= made.int >> 80 <= before + 60_000


def test_uuid7_is_monotonic_and_unique_over_threads() -> None:
    """4 threads, 20,000 each: no id twice, and each thread sees its own ascend."""
    made: list[list[UUID]] = [[] for _ in range(4)]

    def work(mine: list[UUID]) -> None:
        mine.extend(ids.uuid7() for _ in range(20_000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({one for mine in made for one in mine}) == 80_000


def test_uuid7_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back, and 5,000 ids within one millisecond: still ascending."""
    first = ids.uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    made = [ids.uuid7() for _ in range(5_000)]
    assert [first, *made] == sorted({first, *made})


@given(st.binary(), st.uuids())
def test_bucket_formula(key: bytes, event_id: UUID) -> None:
    """First two bytes of SHA-256, big-endian, & 1023; of the event_id without a key; an empty key is a key."""

    def expected(data: bytes) -> int:
        return int.from_bytes(hashlib.sha256(data).digest()[:2], "big") & 1023

    assert ids.bucket_of(key, event_id) == expected(key)
    assert ids.bucket_of(None, event_id) == expected(event_id.bytes)


def test_foreign_ids_do_not_run_together() -> None:
    """Stable; parts are kept apart."""
    assert ids.foreign_id("a", "b") == ids.foreign_id("a", "b")
    assert len({ids.foreign_id("a", "bc"), ids.foreign_id("ab", "c"), ids.foreign_id("abc")}) == 3
    assert ids.foreign_id("cloudevents", "s", "1") == UUID("188ac836-0fdf-5f7b-a334-9653ee7c2151")

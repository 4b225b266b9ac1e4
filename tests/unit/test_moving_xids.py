"""Transaction ids of the stream are compared with those of a snapshot, over the end of the 32 bits that it tells."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from relevo.ops.moving_wal import _whole

NEAR = st.integers(2**31, 2**63 - 2**32)
FAR = 2**31 - 1


@given(NEAR, st.integers(-FAR, FAR))
@example(2**32 + 5, -6)  # the last of the epoch before
@example(2**32 - 3, 8)  # the first ones of the next
@example(2**32, 0)
@example(7 * 2**32 + 3, 2**30)
@example(2**31, -FAR)
def test_an_xid_is_known_by_one_of_about_its_time(near: int, away: int) -> None:
    xid = near + away
    assert _whole(xid & 0xFFFFFFFF, near) == xid

"""``Retry-After`` as a date: held against the receiver's own clock."""

from __future__ import annotations

import pytest

from relevo.effects import NotDone
from relevo.effects.posting import Answer
from relevo.effects.webhook import RETRY_AFTER_MAX_S, _judge


@pytest.mark.parametrize(
    ("retry_after", "date", "seconds"),
    [
        ("Mon, 01 Jan 2035 00:00:30 GMT", "Mon, 01 Jan 2035 00:00:00 GMT", 30.0),
        ("Mon, 01 Jan 2001 00:00:30 GMT", "Mon, 01 Jan 2001 00:00:00 GMT", 30.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", "Mon, 01 Jan 2001 00:00:30 GMT", 0.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", None, 0.0),
        ("Thu, 01 Jan 2099 00:00:00 GMT", "nonsense", RETRY_AFTER_MAX_S),
        ("17", "Mon, 01 Jan 2001 00:00:00 GMT", 17.0),
        ("soon", None, None),
    ],
)
def test_whose_clock(retry_after: str, date: str | None, seconds: float | None) -> None:
    """FAILURES row 43: a receiver whose clock is decades off is waited for as long as it meant."""
    with pytest.raises(NotDone) as raised:
        _judge(Answer(429, retry_after, "", date), 1)
    assert raised.value.retry_after_s == seconds

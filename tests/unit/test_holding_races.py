"""Scripts of held keys against answers that a database gives only when two processes meet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from relevo.ids import uuid7
from relevo.message import Message
from relevo.script import Row, Statement
from relevo.storage.holding import KeyId, Why, hold

MESSAGE = Message(
    event_id=uuid7(),
    type="shop.order.placed",
    topic="shop.order",
    key=b"k",
    payload=b"{}",
    created_at=datetime.now(UTC),
)


def asked(answers: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """Play ``answers`` (statement, its rows) to ``hold``; what it returns."""
    script = hold(
        KeyId("consumer", "books", "shop.order", b"k"),
        MESSAGE,
        "0",
        1,
        state="parked",
        why=Why("because"),
        attempts=1,
        delay_s=None,
    )
    step = next(script)
    for name, rows in answers:
        assert isinstance(step, Statement) and step.name == name
        try:
            step = script.send(list(rows))
        except StopIteration as stop:
            return str(stop.value)
    pytest.fail(f"it wants more: {step}")


def test_a_key_that_became_live_between_conflict_and_lock_is_held_anew() -> None:
    """A former owner of the shard held the key first, and its queue was emptied and the key live again before we had
    the lock. A copy without a key row would never be seen by any drain: the message would be lost."""
    outcome = asked(
        [
            ("held.lock_key", []),
            ("inbox.find", []),
            ("held.add_key", []),
            ("held.lock_key", []),
            ("inbox.find", []),
            ("held.add_key", [(1,)]),
            ("held.append", []),
        ]
    )
    assert outcome == "held"


def test_a_key_that_somebody_else_holds_gets_the_message_behind() -> None:
    outcome = asked(
        [
            ("held.lock_key", []),
            ("inbox.find", []),
            ("held.add_key", []),
            ("held.lock_key", [("parked", 0, 1)]),
            ("inbox.find", []),
            ("held.append", []),
        ]
    )
    assert outcome == "behind"

"""Scripts of dead letters on their way: written with what is given up, removed when the broker has confirmed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relevo.message import Message
from relevo.ports.database import Dialect
from relevo.script import Row, Script, Statement
from relevo.storage import duties
from relevo.storage.duties import Duty
from relevo.storage.rows import message_reader, stand_in
from relevo.times import to_us


@dataclass(frozen=True, slots=True)
class Letter:
    """``refusals``: times the broker refused it so far. ``unreadable``: why its row cannot be read; ``message`` is a
    stand-in then."""

    letter_id: int
    message: Message
    refusals: int
    unreadable: str | None = None


class Waiting(NamedTuple):
    """``refused``: those of them that the broker refused at least once."""

    letters: int
    refused: int


def add(consumer: str, message: Message) -> Script[None]:
    """In the transaction that gives the original up. ``message``: as it is to be published."""
    yield Statement(
        "letters.add",
        {
            "consumer": consumer,
            "event_id": str(message.event_id),
            "kind": message.kind,
            "topic": message.topic,
            "key": message.key,
            "type": message.type,
            "schema_version": message.schema_version,
            "aggregate_type": message.aggregate_type,
            "aggregate_id": message.aggregate_id,
            "aggregate_version": message.aggregate_version,
            "payload": message.payload,
            "content_type": message.content_type,
            "headers": json.dumps(dict(message.headers)),
            "created_us": to_us(message.created_at),
        },
    )


def page(dialect: Dialect, consumer: str, limit: int, *, without_topics: Collection[str] = ()) -> Script[list[Letter]]:
    """The oldest that are due, but for those that go to ``without_topics``."""
    rows = yield Statement(
        "letters.page", {"consumer": consumer, "limit": limit, "without_topics": sorted(without_topics)}
    )
    read = message_reader(dialect)
    return [_letter(row, read) for row in rows]


def _letter(row: Row, read: Callable[[Row], Message]) -> Letter:
    letter_id, refusals, columns = int(row[0]), int(row[14]), row[1:14]
    try:
        return Letter(letter_id, read(columns), refusals)
    except Exception as error:  # noqa: BLE001 - a row that was written by hand
        reason = f"the row with letter_id {letter_id} cannot be read: {error}"
        return Letter(letter_id, stand_in(letter_id, columns), refusals, reason)


def settle(duty: Duty, sent: Sequence[int], refused: Mapping[int, tuple[str, float]]) -> Script[None]:
    """``sent``: confirmed, so removed. ``refused``: id → (what the broker said, seconds until the next try). Raises
    ``LostOwnershipError`` if another process publishes by now."""
    yield from duties.hold(duty)
    if sent:
        yield Statement("letters.sent", {"ids": list(sent)})
    for letter_id, (problem, delay_s) in refused.items():
        yield Statement("letters.refused", {"letter_id": letter_id, "problem": problem, "delay_s": delay_s})


def waiting(consumer: str) -> Script[Waiting]:
    """How many there are."""
    rows = yield Statement("letters.waiting", {"consumer": consumer})
    return Waiting(int(rows[0][0]), int(rows[0][1]))

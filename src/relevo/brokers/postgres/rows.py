"""Rows of the outbox as deliveries, and messages as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from relevo import wire
from relevo.message import Message
from relevo.outgoing import Sendable
from relevo.ports.broker import Delivery
from relevo.script import Rows
from relevo.storage import appending
from relevo.storage.rows import page_reader
from relevo.times import parsed

TIME: Final = "ce_time"
"""The header that keeps a message's own time, as on every wire: ``created_at`` of a row is when it came in here, which
retention and searches by time go by."""

_read = page_reader("postgresql")


def row(message: Sendable) -> dict[str, Any]:
    """The columns of a message that comes from elsewhere."""
    columns = appending.row(message)
    given = {name: value for name, value in message.headers.items() if name == TIME or not wire.reserved(name)}
    headers = {TIME: message.created_at.isoformat(), **given}
    return {**columns, "headers": msgspec.json.encode(headers).decode()}


def messages(rows: Rows) -> Iterator[tuple[int, Message, str | None]]:
    """From rows of ``(seq, lane, *message columns, …)``: seq, message, and why it cannot be read, if so."""
    sendable, unreadable = _read(rows)
    for index, found in enumerate(sendable):
        seq, problem = int(rows[index][0]), unreadable.get(index)
        try:
            message = _timed(found if isinstance(found, Message) else found.message())
        except Exception as error:  # noqa: BLE001 - a row that was written by hand, around every check
            problem, message = str(error), None
        if message is None or problem is not None:
            payload = rows[index][4]  # the columns stand in the order of ``Outgoing``
            message, problem = wire.stand_in(
                str(found.topic), found.key, payload, shard="seq", position=seq, error=ValueError(problem)
            )
            if isinstance(found, Message):
                message = msgspec.structs.replace(message, event_id=found.event_id)
        yield seq, message, problem


def deliveries(rows: Rows, shard: str) -> list[Delivery]:
    """For a history: one shard, by ``seq``. Rows of ``(seq, *message columns)``."""
    return [
        Delivery(message=message, shard=shard, position=seq, generation=0, malformed=malformed)
        for seq, message, malformed in messages([(each[0], None, *each[1:]) for each in rows])
    ]


def _timed(message: Message) -> Message:
    text = message.headers.get(TIME)
    if text is None:
        return message
    headers = {name: value for name, value in message.headers.items() if name != TIME}
    created_at = parsed(text) or message.created_at
    return msgspec.structs.replace(message, created_at=created_at, headers=headers)

"""What a replay reads, and which of it it wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Literal, cast

import msgspec

from relevo.errors import ConfigError, UsageError
from relevo.message import Message
from relevo.ports.broker import Broker, Delivery
from relevo.ports.database import Database
from relevo.ports.history import History, KeepsHistory
from relevo.script import Row
from relevo.storage import replaying
from relevo.storage.replaying import Window
from relevo.storage.rows import message_reader, stand_in

SHARD = "outbox"
"""The name under which the outbox's position is stored."""
CLOCKS_S = 60.0
"""A broker's time stamps are its producers': begin so much earlier, and look at the message's own time."""


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages. ``since``, ``until``: when they were added, ``since <= t < until``, aware. ``from_seq``,
    ``to_seq``: in the outbox, both included. ``source``: the outbox with its archive, or the broker's history."""

    topics: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    key: str | None = None
    source: Literal["outbox", "broker"] = "outbox"
    into: str | None = None

    def check(self) -> None:
        """Raises ``UsageError`` for an empty selection and for one that cannot match."""
        given = (self.since, self.until, self.from_seq, self.to_seq, self.key)
        if all(each is None for each in given):
            raise UsageError("nothing is selected: say --since, --until, --from-seq, --to-seq or --key")
        if self.source == "broker" and (self.from_seq is not None or self.to_seq is not None):
            raise UsageError("--from-seq and --to-seq are positions of the outbox: use --since and --until")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise UsageError("--since must be before --until")
        if self.into is not None and self.into in self.topics:
            raise UsageError(f"--into {self.into!r} is one of the topics that are read: every consumer would get all")

    def matches(self, message: Message) -> bool:
        """Also true of what the outbox's own query found."""
        return (
            (self.since is None or message.created_at >= self.since)
            and (self.until is None or message.created_at < self.until)
            and (self.key is None or message.key == self.key.encode())
        )

    def window(self, to_seq: int) -> Window:
        """For the outbox, up to ``to_seq`` at most."""
        end = to_seq if self.to_seq is None else min(to_seq, self.to_seq)
        key = None if self.key is None else self.key.encode()
        return Window(self.topics, (self.from_seq or 1) - 1, end, self.since, self.until, key)


class OutboxHistory:
    """The ``History`` port over the outbox and its archive: published messages only."""

    def __init__(self, database: Database, window: Window, after: int | None) -> None:
        self._database = database
        self._window = window
        self._after = window.after if after is None else after
        self._read = message_reader(database.dialect)

    async def take(self, max_messages: int) -> Sequence[Delivery]:
        window, after = self._window, self._after
        rows = await self._database.run(replaying.page(window, after, max_messages), read_only=True)
        if rows:
            self._after = int(rows[-1][0])
        return [self._delivery(int(row[0]), row[1:]) for row in rows]

    def _delivery(self, seq: int, row: Row) -> Delivery:
        malformed = None
        try:
            message = self._read(row)
        except Exception as error:  # noqa: BLE001 - a row that was written by hand
            message, malformed = stand_in(seq, row), f"the row with seq {seq} cannot be read: {error}"
        return Delivery(message=message, shard=SHARD, position=seq, generation=0, malformed=malformed)

    async def aclose(self) -> None: ...


@asynccontextmanager
async def opened(
    selection: Selection, database: Database, broker: Broker, positions: dict[str, int], to_seq: int
) -> AsyncIterator[History]:
    """Read what ``selection`` may match, behind ``positions``. Raises ``ConfigError`` for a broker without history."""
    history: History
    if selection.source == "outbox":
        history = OutboxHistory(database, selection.window(to_seq), positions.get(SHARD))
    else:
        if not broker.capabilities.keeps_history:
            raise ConfigError(f"{broker.url} keeps nothing of what was settled: replay from the outbox instead")
        since = None if selection.since is None else selection.since - timedelta(seconds=CLOCKS_S)
        keeps = cast(KeepsHistory, broker)
        history = await keeps.history(selection.topics, since=since, after=positions)
    try:
        yield history
    finally:
        await history.aclose()


async def count(selection: Selection, database: Database, broker: Broker) -> tuple[dict[str, int], int]:
    """Exactly how many messages match, by type, and the outbox's newest ``seq`` then. The broker's history is read
    through for it."""
    to_seq = await database.run(replaying.end(), read_only=True)
    if selection.source == "outbox":
        return await database.run(replaying.count(selection.window(to_seq)), read_only=True), to_seq
    counts: dict[str, int] = {}
    async with opened(selection, database, broker, {}, to_seq) as history:
        while deliveries := await history.take(1_000):
            for delivery in deliveries:
                if selection.matches(delivery.message):
                    counts[delivery.message.type] = counts.get(delivery.message.type, 0) + 1
    return counts, to_seq

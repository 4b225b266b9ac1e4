"""Appending to the outbox of the database that is the broker: one transaction per call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from relevo.brokers.postgres.link import Link
from relevo.brokers.postgres.options import PostgresOptions
from relevo.brokers.postgres.rows import row
from relevo.brokers.refusals import BEHIND, Refusals
from relevo.brokers.rejections import too_large, unknown_topic
from relevo.clients.sqlstate import CUT_OFF, sqlstates
from relevo.errors import ConfigError, MisuseError, UnreachableError
from relevo.outcome import Accepted, PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.outgoing import Sendable
from relevo.ports.broker import BrokerCapabilities
from relevo.script import Script
from relevo.signals import notify
from relevo.storage import grouping

_UNSTORABLE = ("22", "23")
"""SQLSTATE classes: a value, or a check, that the table does not take."""
_SERVER_SHARE = 0.8
"""Of the time a send may take: the server gives up first, and then it is known that nothing was stored."""


class PostgresPublisher:
    """The ``Publisher`` port. Calls are worked on one after the other; a call is one transaction, so it is stored as a
    whole (but for refused messages) or not at all."""

    def __init__(
        self, link: Link, options: PostgresOptions, capabilities: BrokerCapabilities, send_timeout_s: float
    ) -> None:
        self.capabilities = capabilities
        self._link = link
        self._options = options
        self._send_timeout_s = send_timeout_s
        self._refusals = Refusals()
        self._turn = asyncio.Lock()  # first come, first served
        self._known: set[str] = set()
        self._under_way: set[asyncio.Future[dict[int, PublishOutcome]]] = set()
        self._closed = False

    async def publish(self, messages: Sequence[Sendable]) -> Mapping[int, PublishOutcome]:
        if self._closed:
            raise MisuseError("this publisher is closed")
        call = self._refusals.begin()
        # A task of its own: once handed over, a call is finished in order, even if this caller is cancelled.
        work: asyncio.Future[dict[int, PublishOutcome]] = asyncio.ensure_future(self._publish(call, messages))
        self._under_way.add(work)
        work.add_done_callback(self._ended)
        return await self._refusals.told(call, work)

    async def probe(self, topic: str) -> PublishOutcome:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                unknown = await self._unknown([topic])
                await self._link.run(grouping.append_nothing(), timeout_s=self._send_timeout_s * _SERVER_SHARE)
        except (UnreachableError, TimeoutError) as error:
            return Unavailable(str(error) or "the database does not answer")
        except ConfigError as error:
            return Rejected("no_tables", str(error))
        return unknown_topic(topic) if unknown else Accepted()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._link.aclose()

    def _ended(self, work: asyncio.Future[dict[int, PublishOutcome]]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()  # looked at, also when the caller was cancelled

    async def _publish(self, call: int, messages: Sequence[Sendable]) -> dict[int, PublishOutcome]:
        async with self._turn:
            outcomes: dict[int, PublishOutcome] = {}
            begun: list[bool] = []
            try:
                async with asyncio.timeout(self._send_timeout_s):
                    await self._append(call, messages, outcomes, begun)
            except (UnreachableError, ConfigError, TimeoutError) as error:
                reason = str(error) or f"no answer for {self._send_timeout_s:.0f} s"
                undone = any(not state.startswith(CUT_OFF) for state in sqlstates(error))  # the server rolled back
                outcome = Unavailable(reason) if undone or not begun else Unconfirmed(reason)
                for index, message in enumerate(messages):
                    outcomes.setdefault(index, outcome)
                    if message.key is not None:
                        self._refusals.refuse(call, (message.topic, message.key))
            return outcomes

    async def _append(
        self, call: int, messages: Sequence[Sendable], outcomes: dict[int, PublishOutcome], begun: list[bool]
    ) -> None:
        unknown = await self._unknown(list({message.topic for message in messages}))
        rows: list[tuple[int, Mapping[str, Any]]] = []
        for index, message in enumerate(messages):
            refused = self._refused(call, message, unknown)
            if refused is None:
                rows.append((index, row(message)))
            else:
                outcomes[index] = refused
                self._close(call, message)
        if rows:
            try:
                await self._store([columns for _, columns in rows], begun)
            except Exception as error:
                if isinstance(error, ConfigError | TimeoutError) or not _unstorable(error):
                    raise
                await self._one_by_one(call, messages, rows, outcomes, begun)
        notify()

    async def _one_by_one(
        self,
        call: int,
        messages: Sequence[Sendable],
        rows: Sequence[tuple[int, Mapping[str, Any]]],
        outcomes: dict[int, PublishOutcome],
        begun: list[bool],
    ) -> None:
        """One of them is not to be stored: find out which."""
        for index, columns in rows:
            message = messages[index]
            if message.key is not None and self._refusals.closed(call, (message.topic, message.key)):
                outcomes[index] = BEHIND
                self._close(call, message)
                continue
            begun.clear()
            try:
                await self._store([columns], begun)
            except UnreachableError as error:
                if not _unstorable(error):
                    raise
                outcomes[index] = Rejected("not_storable", str(error))
                self._close(call, message)

    async def _store(self, rows: Sequence[Mapping[str, Any]], begun: list[bool]) -> None:
        def script() -> Script[None]:
            begun.append(True)
            yield from grouping.append(rows)

        await self._link.run(script(), timeout_s=self._send_timeout_s * _SERVER_SHARE)

    async def _unknown(self, topics: Sequence[str]) -> frozenset[str]:
        """Those that must be made first. Asked anew for what is not known yet: another process may have made it."""
        if self._options.auto_create:
            return frozenset()
        asked = [topic for topic in topics if topic not in self._known]
        missing = frozenset(await self._link.read(grouping.unknown(asked))) if asked else frozenset[str]()
        self._known.update(topic for topic in asked if topic not in missing)
        return missing

    def _refused(self, call: int, message: Sendable, unknown: frozenset[str]) -> PublishOutcome | None:
        if message.key is not None and self._refusals.closed(call, (message.topic, message.key)):
            return BEHIND
        if message.topic in unknown:
            return unknown_topic(message.topic)
        return too_large(message, self._options.message_bytes_max)

    def _close(self, call: int, message: Sendable) -> None:
        if message.key is not None:
            self._refusals.refuse(call, (message.topic, message.key))


def _unstorable(error: BaseException) -> bool:
    return any(state.startswith(_UNSTORABLE) for state in sqlstates(error))

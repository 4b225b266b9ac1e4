"""The outbox of a PostgreSQL database as a broker, by the URL of that database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from relevo.brokers.postgres import CAPABILITIES
from relevo.brokers.postgres.history import PostgresHistory
from relevo.brokers.postgres.link import Link
from relevo.brokers.postgres.options import parse
from relevo.brokers.postgres.publisher import PostgresPublisher
from relevo.brokers.postgres.subscription import PostgresSubscription
from relevo.ports.broker import SEND_TIMEOUT_S
from relevo.ports.database import Database
from relevo.settings import redact
from relevo.storage import grouping
from relevo.storage.identity import tables_of


class PostgresBroker:
    """The ``Broker`` port on Relevo's own tables: ``postgresql://user@host/database``. They must be there (``relevo
    migrate``), and be read as a log, as new ones are."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = parse(options)
        self.capabilities = msgspec.structs.replace(CAPABILITIES, message_bytes_max=self._options.message_bytes_max)
        self.url = redact(url)

    def __repr__(self) -> str:
        return f"PostgresBroker({self.url!r})"

    async def publisher(self, *, source: str, send_timeout_s: float = SEND_TIMEOUT_S) -> PostgresPublisher:
        return PostgresPublisher(self._link(), self._options, self.capabilities, send_timeout_s)

    async def subscribe(
        self, consumer: str, topics: Sequence[str], *, from_start: bool = True, commands: bool = True
    ) -> PostgresSubscription:
        link = self._link()
        subscription = PostgresSubscription(link, self._options, consumer, topics, from_start=from_start)
        try:
            await subscription.start()
        except BaseException:
            await link.aclose()
            raise
        return subscription

    async def history(
        self, topics: Sequence[str], *, since: datetime | None = None, after: Mapping[str, int] | None = None
    ) -> PostgresHistory:
        history = PostgresHistory(self._link(), topics, ask=not self._options.auto_create)
        try:
            await history.open(since, after or {})
        except BaseException:
            await history.aclose()
            raise
        return history

    async def ensure_topics(self, topics: Sequence[str]) -> Sequence[str]:
        link = self._link()
        try:
            return await link.run(grouping.create_topics(list(dict.fromkeys(topics))))
        finally:
            await link.aclose()

    async def check(self) -> None:
        link = self._link()
        try:
            await link.check()
        finally:
            await link.aclose()

    async def is_outbox_of(self, database: Database) -> bool:
        if database.dialect != "postgresql":
            return False
        link = self._link()
        try:
            await link.check()
            return (await tables_of(link.database)).same(await tables_of(database))
        finally:
            await link.aclose()

    def _link(self) -> Link:
        return Link(self._url, self._options)

"""The embedded broker by its URL."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from relevo.brokers.embedded import CAPABILITIES, topics
from relevo.brokers.embedded.file import BrokerFile, writing
from relevo.brokers.embedded.history import EmbeddedHistory
from relevo.brokers.embedded.options import parse
from relevo.brokers.embedded.publisher import EmbeddedPublisher
from relevo.brokers.embedded.subscription import EmbeddedSubscription
from relevo.errors import ConfigError
from relevo.ports.broker import SEND_TIMEOUT_S


class EmbeddedBroker:
    """The ``Broker`` port on one SQLite file: ``embedded:relative.db``, ``embedded:/absolute.db`` or
    ``embedded:///absolute.db``. The file is made when it is first used; its folder must be there."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        path = path_of(url)
        self._path = path.absolute()  # a handler may go to another folder
        self._options = parse(options)
        self.capabilities = msgspec.structs.replace(CAPABILITIES, message_bytes_max=self._options.message_bytes_max)
        self.url = f"embedded:{path}"

    def __repr__(self) -> str:
        return f"EmbeddedBroker({self.url!r})"

    async def publisher(self, *, source: str, send_timeout_s: float = SEND_TIMEOUT_S) -> EmbeddedPublisher:
        return EmbeddedPublisher(self._file(), self._options, self.capabilities, source, send_timeout_s)

    async def subscribe(
        self, consumer: str, topics: Sequence[str], *, from_start: bool = True, commands: bool = True
    ) -> EmbeddedSubscription:
        file = self._file()
        subscription = EmbeddedSubscription(file, self._options, consumer, topics, from_start)
        try:
            await subscription.start()
        except BaseException:
            await file.release()
            raise
        return subscription

    async def history(
        self, topics: Sequence[str], *, since: datetime | None = None, after: Mapping[str, int] | None = None
    ) -> EmbeddedHistory:
        file = self._file()
        history = EmbeddedHistory(file)
        try:
            await history.open(list(dict.fromkeys(topics)), since, after or {})
        except BaseException:
            await history.aclose()
            raise
        return history

    async def ensure_topics(self, wanted: Sequence[str]) -> Sequence[str]:
        def create(connection: sqlite3.Connection) -> Sequence[str]:
            with writing(connection):
                missing = [topic for topic in dict.fromkeys(wanted) if not topics.shards_of(connection, topic)]
                for topic in missing:
                    topics.create(connection, topic, self._options.partitions)
                return missing

        file = self._file()
        try:
            return await file.run(create)
        finally:
            await file.release()

    async def check(self) -> None:
        def write_nothing(connection: sqlite3.Connection) -> None:
            with writing(connection):
                pass

        file = self._file()
        try:
            await file.run(write_nothing)
        finally:
            await file.release()

    def _file(self) -> BrokerFile:
        return BrokerFile.acquire(
            self._path, busy_timeout_s=self._options.busy_timeout_s, retention_s=self._options.retention_s
        )


def path_of(url: str) -> Path:
    """The file an ``embedded:`` URL names; raises ``ConfigError`` if it names none."""
    _, _, rest = url.partition(":")
    if rest.startswith("///"):
        rest = rest[2:]
    elif rest.startswith("//"):
        raise ConfigError(f"broker.url {url!r}: use embedded:relative.db or embedded:///absolute/path.db")
    if rest.rstrip("/") in ("", ":memory:"):
        raise ConfigError(f"broker.url {url!r} names no file (memory is not durable, so it is not offered)")
    return Path(rest)

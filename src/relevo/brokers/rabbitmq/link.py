"""A publisher's connection: one channel in confirm mode, made when it is needed, given up as a whole when it breaks."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from relevo.brokers.rabbitmq import topology
from relevo.brokers.rabbitmq.options import RabbitOptions
from relevo.brokers.rejections import unusable_topic
from relevo.clients.aio_pika import close, connect, end_if_cancelled, let_go, lost, place_of, settled_down
from relevo.errors import ConfigError, UnreachableError
from relevo.outcome import Accepted, PublishOutcome, Rejected, Unavailable

KNOWN_FOR_S: Final = 60.0
UNKNOWN_FOR_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0


class Link:
    """Used from one event loop. ``number`` changes with every connection."""

    def __init__(self, url: str, options: RabbitOptions) -> None:
        self._url = url
        self._options = options
        self._connection: Any = None
        self._channel: Any = None
        self._connecting = asyncio.Lock()
        self._known: dict[str, tuple[float, PublishOutcome]] = {}
        self.number = 0
        self.last_sign = 0.0
        """When the server last confirmed something, by the loop's clock."""

    @property
    def open(self) -> bool:
        return self._channel is not None and not self._channel.is_closed and not self._connection.is_closed

    async def channel(self) -> Any:
        """The publishing channel; raises ``UnreachableError`` or ``ConfigError``."""
        async with self._connecting:
            if not self.open:
                self.give_up()
                self._connection = await connect(
                    self._url, timeout_s=self._options.connect_timeout_s, name="relevo-publisher"
                )
                self.number += 1
                try:
                    async with asyncio.timeout(self._options.connect_timeout_s):
                        self._channel = await self._connection.channel(publisher_confirms=True)
                except lost() as error:
                    self.give_up()
                    end_if_cancelled()
                    raise UnreachableError(f"RabbitMQ at {place_of(self._url)}: {type(error).__name__}") from None
            return self._channel

    async def topic(self, name: str, *, fresh: bool = False) -> PublishOutcome:
        """``Accepted`` if the topic can be sent to, as far as is known; else what a message for it must be told."""
        until, outcome = self._known.get(name, (0.0, Accepted()))
        if fresh or until < time.monotonic():
            outcome = await self._ask(name)
            lasts_s = KNOWN_FOR_S if isinstance(outcome, Accepted) else UNKNOWN_FOR_S
            if isinstance(outcome, Unavailable):
                self._known.pop(name, None)
            else:
                self._known[name] = (time.monotonic() + lasts_s, outcome)
        return outcome

    def forget_topics(self) -> None:
        self._known.clear()

    def give_up(self) -> None:
        """Leave the connection as it is; what was under way on it is lost to us."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            let_go(connection)

    async def aclose(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await close(connection)
        await settled_down()

    async def _ask(self, name: str) -> PublishOutcome:
        if problem := topology.too_long(name):
            return Rejected("unknown_topic", problem)
        if (rejected := unusable_topic(name)) is not None:
            return rejected
        try:
            await self.channel()
            async with asyncio.timeout(ASK_TIMEOUT_S):
                if await topology.exists(self._connection, name):
                    return Accepted()
        except TimeoutError:
            self.give_up()
            end_if_cancelled()
            return Unavailable(f"RabbitMQ at {place_of(self._url)} does not answer")
        except (UnreachableError, ConfigError) as error:
            return Unavailable(str(error))
        except lost() as error:
            self.give_up()
            end_if_cancelled()
            return Unavailable(f"RabbitMQ at {place_of(self._url)}: {type(error).__name__}")
        return Rejected("unknown_topic", f"there is no exchange {name!r}: create the topic first")

"""A relay that marks before the broker confirmed: what the ledger must notice. Never a part of the product.

``publish`` says at once that everything was accepted and hands the page over later, in the background: exactly what a
relay does that settles first. When it is killed in between, what it had marked is lost. Nothing is handed over before
the file named by ``HAND_OVER`` is there, so that a kill in between needs no luck.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relevo.cli.main import main
from relevo.message import Message
from relevo.outcome import PublishOutcome
from relevo.relay import engine

HAND_OVER = "LEDGER_HAND_OVER"
"""The variable with the file's path."""


class MarksFirst:
    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self.capabilities = publisher.capabilities
        self._tasks: set[asyncio.Task[Any]] = set()

    async def publish(self, messages: Sequence[Message]) -> Mapping[int, PublishOutcome]:
        file = Path(os.environ[HAND_OVER])

        async def later() -> None:
            while not file.exists():
                await asyncio.sleep(0.02)
            await self._publisher.publish(messages)

        task = asyncio.create_task(later())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {}

    async def probe(self, topic: str) -> PublishOutcome:
        return await self._publisher.probe(topic)

    async def aclose(self) -> None:
        await asyncio.gather(*self._tasks)
        await self._publisher.aclose()


_post_init = engine.RelayEngine.__post_init__


def _broken(self: engine.RelayEngine) -> None:
    self.publisher = MarksFirst(self.publisher)
    _post_init(self)


if __name__ == "__main__":
    engine.RelayEngine.__post_init__ = _broken  # type: ignore[method-assign]
    main(sys.argv[1:])

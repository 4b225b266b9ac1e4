"""Processes the broker conformance suite starts and kills, and the messages it sends."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Any

from relevo.ids import uuid7
from relevo.message import Message
from relevo.ports.broker import Broker

MakeBroker = Callable[[], Broker]

KEYS = 8


def make_message(topic: str, *, payload: bytes | None = b"{}", key: bytes | None = None, **more: Any) -> Message:
    """A message with an id of its own."""
    return Message(
        event_id=uuid7(),
        type="conformance.happened",
        topic=topic,
        payload=payload,
        key=key,
        created_at=datetime.now(UTC),
        **more,
    )


class Child:
    """A process and what it reported so far. ``last``: its last report."""

    def __init__(self, process: Any, reports: Connection) -> None:
        self._process = process
        self._reports = reports
        self.last = -1

    async def said(self, at_least: int = 0) -> bool:
        """Whether it reported ``at_least`` that; fails when it ended instead."""
        self._read()
        if self.last < at_least and not self._process.is_alive():
            raise AssertionError(f"the child ended by itself with {self._process.exitcode}")
        return self.last >= at_least

    def kill(self) -> None:
        """SIGKILL, and make sure that it was this which ended it."""
        assert self._process.is_alive(), "the child ended before it was killed"
        self._process.kill()
        self._process.join()
        assert self._process.exitcode == -9, self._process.exitcode
        self._read()

    def _read(self) -> None:
        try:
            while self._reports.poll():
                self.last = self._reports.recv()
        except EOFError:
            pass


@contextmanager
def running(target: Callable[..., None], *arguments: object) -> Iterator[Child]:
    """Run ``target(reports, *arguments)`` in a process of its own, killed at the end if it still lives."""
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(writing, *arguments), daemon=True)
    process.start()
    writing.close()
    try:
        yield Child(process, reading)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        reading.close()


def member_that_hangs(
    reports: Connection, make_broker: MakeBroker, group: str, topic: str, count: int, settled: int
) -> None:
    """Take ``count`` messages, settle the first ``settled``, report, and stay."""

    async def main() -> None:
        member = await make_broker().subscribe(group, [topic])
        taken: list[Any] = []
        while len(taken) < count:
            taken.extend(await member.take(count, 1.0))
        await member.settle(taken[:settled])
        await member.flush()
        reports.send(len(taken))
        await asyncio.Event().wait()

    asyncio.run(main())


def publisher_that_goes_on(reports: Connection, make_broker: MakeBroker, topic: str) -> None:
    """Publish numbered messages of ``KEYS`` keys, ten of each in a call, and report how many of each were accepted."""

    async def main() -> None:
        publisher = await make_broker().publisher(source="urn:relevo:conformance")
        number = 0
        while True:
            batch = [
                make_message(topic, key=b"k%d" % key, payload=b"%d" % (number + step))
                for step in range(10)
                for key in range(KEYS)
            ]
            assert await publisher.publish(batch) == {}
            number += 10
            reports.send(number)

    asyncio.run(main())

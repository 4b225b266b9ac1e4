"""The moving parts of ``relevo bench``: writers, the relay's process, and a consumer that notes when what arrived."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO
from uuid import UUID

from relevo.errors import CheckFailedError
from relevo.event import event
from relevo.ops.bench_report import Plan
from relevo.outbox import Outbox
from relevo.ports.broker import Subscription
from relevo.runtime.clock import boottime_s
from relevo.settings import Settings
from relevo.storage.transactions import Transactions

KEYS = 10_000
PATIENCE_S = 60.0
STOP_S = 30.0
TAKE_MAX = 2000


@event("relevo.bench.sample", key="key")
@dataclass(frozen=True, slots=True)
class Sample:
    key: str
    note: str


@dataclass(frozen=True, slots=True)
class Wrote:
    event_id: UUID
    committed_s: float


async def write(
    settings: Settings, plan: Plan, transactions: Transactions, count: int, *, rate: float | None = None
) -> list[Wrote]:
    """Append ``count`` events, each in a transaction of its own, by the plan's writers in threads: as fast as they can,
    or evenly at ``rate`` per second."""
    outbox = Outbox(schema=settings.database.schema, prefix=settings.database.prefix)
    note = "y" * max(plan.bytes - 30, 0)
    begun = boottime_s()

    def some(part: int) -> list[Wrote]:
        done = []
        for number in range(part, count, plan.writers):
            if rate is not None:
                time.sleep(max(0.0, begun + number / rate - boottime_s()))
            unit = transactions.unit()
            try:
                unit.begin()
                event_id = outbox.add(unit.enter(), Sample(f"k{number % KEYS}", note), topic=plan.topic)
                unit.leave()
                unit.commit()
            except BaseException:
                unit.rollback()
                raise
            finally:
                unit.close()
            done.append(Wrote(event_id, boottime_s()))
        return done

    parts = await asyncio.gather(*[asyncio.to_thread(some, part) for part in range(plan.writers)])
    return [each for part in parts for each in part]


class RelayProcess:
    """``relevo relay`` in a process of its own, from ``with`` to its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def check(self) -> None:
        """Raise ``CheckFailedError`` with its last words if it ended."""
        if self._process.poll() is not None:
            raise CheckFailedError(f"the relay ended by itself: {self.last_words()}")

    def last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


@dataclass
class Arrivals:
    """When each message arrived, by this process's clock."""

    subscription: Subscription
    seen: dict[UUID, float] = field(default_factory=dict)
    _came: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: Exception | None = None

    async def run(self) -> None:
        """Read and settle until cancelled."""
        try:
            while True:
                deliveries = await self.subscription.take(TAKE_MAX, 0.5)
                now = boottime_s()
                for delivery in deliveries:
                    self.seen.setdefault(delivery.message.event_id, now)
                if deliveries:
                    await self.subscription.settle(deliveries)
                    self._came.set()
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            self._failed = error
            self._came.set()

    async def all_of(self, wrote: Iterable[Wrote], relay: RelayProcess) -> None:
        """Wait until all of them arrived. Raises ``CheckFailedError`` if the relay ended, or if nothing came for a
        minute."""
        missing = {each.event_id for each in wrote} - self.seen.keys()
        until = boottime_s() + PATIENCE_S
        while missing:
            relay.check()
            try:
                async with asyncio.timeout(1.0):
                    await self._came.wait()
            except TimeoutError:
                pass
            self._came.clear()
            if self._failed is not None:
                raise self._failed
            before, missing = len(missing), missing - self.seen.keys()
            if len(missing) < before:
                until = boottime_s() + PATIENCE_S
            elif boottime_s() > until:
                raise CheckFailedError(
                    f"{len(missing):,} events did not arrive; the relay's last words: {relay.last_words()}"
                )

"""The consumers of one process, run together: what ``relevo consume`` and an application's lifespan start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from relevo.bounds import answer_s
from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.consumer.consumer import Consumer
from relevo.consumer.engine import ConsumerEngine, Resources
from relevo.consumer.gate import Gate
from relevo.consumer.health import ConsumerHealth
from relevo.consumer.runs import Slots
from relevo.consumer.start import refuse_two_takers
from relevo.consumer.threads import HandlerThreads
from relevo.effects import Effect, EffectRunner
from relevo.errors import ConfigError, TaskEndedError
from relevo.ports.broker import Broker
from relevo.ports.database import Database
from relevo.runtime.patience import reason_of
from relevo.settings import Settings
from relevo.tasks import Tasks

log = logging.getLogger("relevo.consumer")

CLOSE_S = 2.0
"""How long closing Relevo's own connections may take."""


class ConsumerRunner:
    """Runs consumers until ``stop`` (or the event given to ``run``) or the first that cannot go on.

    ``broker`` and ``database``: to use ones that are open already; they stay open. ``effects``: performed meanwhile.
    One event loop; runs once.
    """

    def __init__(
        self,
        consumers: Consumer | Sequence[Consumer],
        settings: Settings,
        *,
        broker: Broker | None = None,
        database: Database | None = None,
        effects: Iterable[Effect] = (),
    ) -> None:
        self.consumers = (consumers,) if isinstance(consumers, Consumer) else tuple(consumers)
        if not self.consumers:
            raise ConfigError("there is no consumer to run")
        _refuse_clashes(self.consumers)
        refuse_two_takers(self.consumers)
        self._settings = settings
        self._broker = broker
        self._database = database
        self._effects = tuple(effects)
        self._engines: list[ConsumerEngine] = []
        self._stopped = False
        self._tasks = Tasks("consumers", log)
        self._performer: EffectRunner | None = None
        self._performed = asyncio.Event()
        """Set when effects are to stop: with the consumers, so that both keep the bound of a stop."""
        self._over: str | None = None

    def stop(self) -> None:
        """Take nothing more; finish what runs, hand back the rest, leave. Idempotent; call it on the loop."""
        self._stopped = True
        self._performed.set()
        for engine in self._engines:
            engine.stop()

    async def run(self, stop: asyncio.Event | None = None, on_ready: Callable[[], None] | None = None) -> None:
        """Until ``stop`` and everything is given back. ``on_ready`` is called once all take messages.

        Raises ``ConfigError`` or ``SchemaError`` when a consumer cannot start. Cancellation leaves at once: what runs
        is rolled back and handed back.
        """
        settings = self._settings.consumer
        database = self._database or database_for(self._settings.database, answer_s=answer_s(settings.lease_s))
        threads = HandlerThreads(settings.threads)
        slots = Slots(
            asyncio.Semaphore(settings.threads), asyncio.Semaphore(settings.connections_max), asyncio.Semaphore(1)
        )
        broker = self._broker or broker_for(self._settings.broker.url, self._settings.broker.options)
        resources = Resources(self._settings, database, broker, Gate(), slots, threads)
        try:
            self._engines = [ConsumerEngine(consumer, resources) for consumer in self.consumers]
            if self._stopped:
                return
            if stop is not None:
                self._tasks.keep("following a stop", partial(self._watch, stop), may_end=stop.is_set)
            if on_ready is not None:
                self._tasks.once("saying that all are ready", self._announce(on_ready))
            async with self._performing(database):
                await self._run_all()
            self._over = "it was stopped"
        except BaseException as error:
            self._over = f"it ended: {reason_of(error)}"
            raise
        finally:
            await self._tasks.aclose()
            threads.close()
            if self._database is None:
                try:
                    async with asyncio.timeout(CLOSE_S):
                        await database.aclose()
                except TimeoutError:
                    pass  # a hanging handler holds SQLite's write lock; the process ends, and with it the connection

    def health(self) -> ConsumerHealth:
        """All consumers together, from memory; problems are named ``consumer/what``."""
        parts = [(engine.consumer.name, engine.health()) for engine in self._engines]
        performing = self._performer.health() if self._performer is not None else None
        problems = dict(self._tasks.problems)
        if self._over is not None:
            problems["process"] = self._over
        problems |= {f"{name}/{what}": why for name, part in parts for what, why in part.problems.items()}
        if performing is not None:
            problems |= {f"effects/{what}": why for what, why in performing.problems.items()}
        live = self._over is None and self._tasks.live and all(part.live for _, part in parts)
        ready = bool(parts) and not problems and all(part.ready for _, part in parts)
        return ConsumerHealth(
            live=live and (performing is None or performing.live),
            ready=ready,
            problems=problems,
            detail={name: part.detail for name, part in parts},
            ages={
                **{f"{name}/{what}": age for name, part in parts for what, age in part.ages.items()},
                **({f"effects/{what}": age for what, age in performing.ages.items()} if performing else {}),
            },
        )

    async def _run_all(self) -> None:
        """All engines; when one ends, whatever the reason, the others stop in good order."""
        tasks = [asyncio.create_task(engine.run()) for engine in self._engines]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        for task, consumer in zip(tasks, self.consumers, strict=True):
            if task.cancelled():
                raise TaskEndedError(f"consumer {consumer.name} was cancelled by other code: this process ends")
            task.result()

    @asynccontextmanager
    async def _performing(self, database: Database) -> AsyncIterator[None]:
        """Effects beside the consumers. When performing fails for good, everything stops and it is raised."""
        if not self._effects:
            yield
            return
        stop = self._performed
        failed: list[Exception] = []

        async def perform() -> None:
            runner = self._performer = EffectRunner(self._effects, self._settings, database=database)
            try:
                await runner.run(stop)
            except Exception as error:
                if runner.began:
                    raise
                failed.append(error)  # a mistake found at the start
                self.stop()

        kept = self._tasks.keep("performing effects", perform, may_end=lambda: stop.is_set() or bool(failed))
        try:
            yield
            stop.set()
            await kept.over
            if failed:
                raise failed[0]
        finally:
            kept.cancel()
            await kept.over

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        for engine in self._engines:
            await engine.started.wait()
        on_ready()

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stop()


def _refuse_clashes(consumers: Sequence[Consumer]) -> None:
    names: dict[str, Consumer] = {}
    for consumer in consumers:
        other = names.setdefault(consumer.name, consumer)
        if other is not consumer:
            raise ConfigError(
                f"two consumers are named {consumer.name!r}, on {list(other.topics)} and {list(consumer.topics)}. The "
                "name is the identity in the inbox: rename one, or declare all handlers on one consumer"
            )

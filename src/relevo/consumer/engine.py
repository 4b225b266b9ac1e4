"""One running consumer: its intake, its drain and its heartbeat, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relevo._version import __version__
from relevo.bounds import answer_s
from relevo.catalog import Catalog
from relevo.consumer.availability import Availability
from relevo.consumer.batches import batches_of
from relevo.consumer.clocks import forgetting
from relevo.consumer.consumer import Consumer
from relevo.consumer.drain import Drain
from relevo.consumer.gate import Gate
from relevo.consumer.health import ConsumerHealth
from relevo.consumer.intake import Intake
from relevo.consumer.journal import Journal
from relevo.consumer.letters import Letters, let_go, writes_letters
from relevo.consumer.routing import Routes
from relevo.consumer.runs import Runs, Slots
from relevo.consumer.shared import Interrupt, Shared
from relevo.consumer.start import detail_of, enter, short_window, sources_of, verify_same_database
from relevo.consumer.threads import HandlerThreads
from relevo.errors import ConfigError, UnreachableError
from relevo.ids import uuid7
from relevo.policy import PROBE_BACKOFF
from relevo.ports.broker import Broker, Subscription
from relevo.ports.database import Database
from relevo.runtime.trouble import Trouble
from relevo.settings import Settings
from relevo.storage import holding, inboxing, pausing, processes
from relevo.storage.ready import ensure_ready

log = logging.getLogger("relevo.consumer")

_running: dict[str, list[tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Resources:
    """What the consumers of one process share."""

    settings: Settings
    database: Database
    broker: Broker
    gate: Gate
    slots: Slots
    threads: HandlerThreads


class ConsumerEngine:
    """Runs one ``Consumer`` until ``stop``. For one event loop; a stopped engine is not started again."""

    def __init__(self, consumer: Consumer, resources: Resources) -> None:
        self.consumer = consumer
        self._resources = resources
        self._settings = resources.settings.consumer
        self._routes: Routes = consumer.routes()
        self._sources = sources_of(consumer, resources.settings.database)
        self._interrupt = Interrupt()
        self._drain_wanted = asyncio.Event()
        self._owner: UUID = uuid7()
        on_change, idle_s = forgetting(self._sources.values()), self._settings.lease_s / 2
        self._database = Availability(resources.database, consumer.name, on_change, idle_timeout_s=idle_s)
        self._intake: Intake | None = None
        self._drain: Drain | None = None
        self._letters: Letters | None = None
        self._broker_trouble = Trouble()
        self._broker_trouble.begin("not subscribed yet")
        self._lag: Mapping[str, int] = {}
        self._pauses = pausing.NONE
        self.started = asyncio.Event()
        """Set once it takes messages."""

    def stop(self) -> None:
        """Take nothing more; finish what runs, hand back the rest, leave. ``run`` returns when that is done."""
        self._interrupt.stop()
        self._drain_wanted.set()

    async def run(self) -> None:
        """Until ``stop``. Waits out outages of database and broker. Raises ``SchemaError`` or ``ConfigError`` when it
        cannot start; cancellation hands back what is in flight and leaves."""
        self._enter_name()
        try:
            await self._check()
            subscription = await self._subscribe()
            if subscription is not None:
                await self._work(subscription)
        finally:
            _running[self.consumer.name].remove(self.consumer.topics)
            await self._database.aclose()
            for source in set(self._sources.values()):
                await source.aclose()

    def health(self) -> ConsumerHealth:
        """From memory, at once."""
        problems = {}
        if self._database.problem is not None:
            problems["database"] = self._database.problem
        broker = self._broker_trouble.text or (self._intake.problem if self._intake is not None else None)
        if broker is not None:
            problems["broker"] = broker
        detail = {
            "consumer": self.consumer.name,
            "topics": list(self.consumer.topics),
            "in_flight": len(self._intake) if self._intake else 0,
            "draining": len(self._drain) if self._drain else 0,
            "lag": dict(self._lag),
            "stopping": self._interrupt.stopping,
            "paused_by_people": self._pauses.snapshot(),
            "dead_letters": self._letters.snapshot() if self._letters else {},
        }
        return ConsumerHealth(
            live=True, ready=not problems and not self._interrupt.stopping, problems=problems, detail=detail
        )

    def _enter_name(self) -> None:
        others = _running.setdefault(self.consumer.name, [])
        for topics in others:
            if set(topics) != set(self.consumer.topics):
                raise ConfigError(
                    f"two consumers named {self.consumer.name!r} run in this process with different topics, "
                    f"{list(topics)} and {list(self.consumer.topics)}: one group, so each would miss some. Rename one"
                )
        others.append(self.consumer.topics)

    async def _check(self) -> None:
        """Tables there? And in the same database as the handlers' transactions? An outage is waited out."""
        if (short := short_window(self.consumer, self._settings)) is not None:
            log.warning("%s", short)
        while not self._interrupt.stopping:
            try:
                await ensure_ready(self._resources.database, self._resources.settings)
                await self._register()
                await self._resources.database.run(processes.forget_dead())
                if self.consumer.tx is not None:
                    catalog = self._catalog()
                    for source in set(self._sources.values()):
                        await verify_same_database(source, self._resources.database, catalog)
                return
            except UnreachableError as error:
                self._database.down(str(error))
                await self._database.up()

    async def _subscribe(self) -> Subscription | None:
        failures = 0
        while not self._interrupt.stopping:
            try:
                subscription = await self._resources.broker.subscribe(
                    self.consumer.name, self.consumer.topics, commands=self.consumer.takes_commands
                )
            except UnreachableError as error:
                failures += 1
                if failures == 1:
                    log.warning("consumer %s: the broker does not answer (%s); trying again", self.consumer.name, error)
                self._broker_trouble.begin(str(error))
                await self._interrupt.sleep(PROBE_BACKOFF.delay_s(failures), lambda: False)
                continue
            self._broker_trouble.end()
            return subscription
        return None

    async def _work(self, subscription: Subscription) -> None:
        with contextlib.suppress(UnreachableError):  # it is looked at again in a second
            self._pauses = await self._resources.database.run(pausing.load(), read_only=True)
        shared = self._shared()
        intake = self._intake = Intake(
            *(shared, subscription, batches_of(self.consumer, self._settings, shared, subscription)),
            in_flight_max=self._settings.in_flight_max,
            batch_max=self._settings.batch_max,
        )
        drain = self._drain = Drain(shared, keys_max=max(1, min(16, self._settings.in_flight_max // 4)))
        resources = self._resources
        letters = self._letters = Letters(shared, resources.broker, resources.settings, resources.database.dialect)
        revoke_s = self._settings.stop_timeout_s / 2

        async def on_revoke(shards: Sequence[str]) -> None:
            await intake.revoked(shards, revoke_s)

        subscription.on_revoke(on_revoke)
        draining = asyncio.create_task(drain.run())
        beating = asyncio.create_task(self._beat(subscription))
        beside = (asyncio.create_task(self._look_at_pauses(shared)), asyncio.create_task(letters.run()))
        taking = asyncio.create_task(intake.run())
        log.info("consumer %s: started on %s", self.consumer.name, ", ".join(self.consumer.topics))
        self.started.set()
        cut_short = False
        try:
            await asyncio.wait([taking, draining, beating], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            cut_short = True
            raise
        finally:
            self.stop()
            await let_go(shared, *beside, 0.0 if cut_short else self._settings.stop_timeout_s / 4)
            await self._leave(subscription, shared, [taking, draining, beating], cut_short)
        for task in (taking, draining, beating):
            if task.done() and not task.cancelled():
                task.result()

    async def _leave(
        self, subscription: Subscription, shared: Shared, tasks: Sequence[asyncio.Task[None]], cut_short: bool
    ) -> None:
        """Give everything back in good order. Also after a cancellation, then without waiting for handlers."""
        taking, draining, beating = tasks
        timeout_s = 0.0 if cut_short else self._settings.stop_timeout_s * 0.8  # the rest is for giving back
        if cut_short:
            taking.cancel()
        await asyncio.wait([taking], timeout=max(1.0, timeout_s))
        taking.cancel()
        assert self._intake is not None
        await self._intake.finish(timeout_s)
        if shared.database.reason is not None or cut_short:
            draining.cancel()
        await asyncio.wait([draining], timeout=max(2.0, timeout_s))
        draining.cancel()
        beating.cancel()
        await asyncio.gather(taking, draining, beating, return_exceptions=True)
        async with contextlib.aclosing(subscription):
            with contextlib.suppress(UnreachableError):  # a stop is a stop: what it is not told comes again
                await subscription.flush()
        try:
            async with asyncio.timeout(2.0):
                if shared.database.reason is None:
                    await shared.journal.flush()
                    await shared.database.run(lambda: processes.leave(self._owner))
        except TimeoutError:
            log.info("consumer %s: its process row is left to expire", self.consumer.name)
        log.info("consumer %s: stopped", self.consumer.name)

    async def _look_at_pauses(self, shared: Shared) -> None:
        """Follow what people paused and resumed, about once a second."""
        while True:
            pauses = await self._database.run(pausing.load, read_only=True)
            if {each.target for each in pauses.all} != {each.target for each in shared.pauses.all}:
                shared.pauses = self._pauses = pauses
                self._interrupt.stir()
                self._drain_wanted.set()
            await asyncio.sleep(pausing.LOOK_S)

    async def _beat(self, subscription: Subscription) -> None:
        """Renew this process's row and the leases of the keys it drains, three times per lease; look at the lag."""
        lease_s = self._settings.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            await self._database.run(self._registration)
            await self._database.run(lambda: holding.renew("consumer", self.consumer.name, self._owner, lease_s))
            try:
                async with asyncio.timeout(lease_s / 3):  # the lease is not to wait for it
                    self._lag = await subscription.lag()
            except (UnreachableError, TimeoutError):
                self._lag = {}

    async def _register(self) -> None:
        await enter(self.consumer, self._owner, self._resources.database, self._registration())

    def _registration(self) -> Any:
        return processes.register(
            self._owner,
            "consumer",
            self.consumer.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            topics=self.consumer.topics,
            detail=detail_of(self.consumer, len(self._intake) if self._intake else 0, self._lag),
            lease_s=self._settings.lease_s,
        )

    def _catalog(self) -> Catalog:
        database = self._resources.settings.database
        return Catalog(self._resources.database.dialect, database.schema, database.prefix)

    def _shared(self) -> Shared:
        name, resources = self.consumer.name, self._resources
        runs = Runs(
            *(name, self._catalog(), self._sources, resources.slots, resources.threads),
            idle_timeout_s=self._settings.handler_idle_timeout_s,
            take_back=lambda id, xid: self._database.run(lambda: inboxing.take_back(name, [id], xid=xid)),
            answer_s=answer_s(self._settings.lease_s),
        )
        return Shared(
            *(name, self._owner, self._routes, self.consumer.policy, runs, self._database),
            Journal(name, self._owner, self._database),
            *(resources.gate, self._interrupt, self._drain_wanted, self._settings.lease_s),
            *(self.consumer.topics, self._pauses),
            dead_letters=writes_letters(self.consumer, resources.settings),
            counted=not resources.broker.capabilities.keeps_history,
        )

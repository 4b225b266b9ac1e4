"""One running consumer: its intake, its drain and its heartbeat, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from relevo.bounds import CLEANUP_S, answer_s
from relevo.catalog import Catalog
from relevo.consumer.availability import Availability
from relevo.consumer.batches import batches_of
from relevo.consumer.clocks import forgetting
from relevo.consumer.consumer import Consumer
from relevo.consumer.drain import Drain
from relevo.consumer.gate import Gate
from relevo.consumer.hangs import Hangs
from relevo.consumer.health import ConsumerHealth, vitals_of
from relevo.consumer.intake import Intake
from relevo.consumer.journal import Journal
from relevo.consumer.leaving import leave
from relevo.consumer.letters import Letters, let_go, writes_letters
from relevo.consumer.membership import Membership, enter_name, leave_name
from relevo.consumer.routing import Routes
from relevo.consumer.runs import Runs, Slots
from relevo.consumer.shared import Interrupt, Shared, bounds_of, elsewhere
from relevo.consumer.start import short_window, sources_of, verify_same_database
from relevo.consumer.threads import HandlerThreads
from relevo.ids import uuid7
from relevo.ports.broker import Broker, Subscription
from relevo.ports.database import Database
from relevo.runtime.closing import MOMENT_S, stoppable, within
from relevo.runtime.patience import Patience, is_mistake, reason_of
from relevo.runtime.pulse import Pulse
from relevo.runtime.trouble import Trouble
from relevo.runtime.vitals import Vitals
from relevo.settings import Settings
from relevo.storage import inboxing, pausing, processes
from relevo.storage.ready import ensure_ready

log = logging.getLogger("relevo.consumer")


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
        self._drain_wanted, self._stop = asyncio.Event(), asyncio.Event()
        on_change, idle_s = forgetting(self._sources.values()), self._settings.lease_s / 2
        self._database = Availability(resources.database, consumer.name, on_change, idle_timeout_s=idle_s)
        self._tasks = self._database.tasks
        self._patience = Patience(f"consumer {consumer.name}", log)
        self._stopped = self._began = False
        self._over: str | None = None
        self.pulse = Pulse()
        """When it last renewed its leases, looked at pauses, took deliveries and settled some."""
        self._vitals = Vitals(self.pulse, vitals_of(self._settings.lease_s))
        self._member = Membership(consumer, self._settings.lease_s, self._in_flight, self.pulse)
        self._member.about = lambda: {"problems": self._problems(), "ages": self._vitals.ages()}
        self._runs: Runs | None = None
        self._intake: Intake | None = None
        self._drain: Drain | None = None
        self._letters: Letters | None = None
        self._broker_trouble = Trouble()
        self._broker_trouble.begin("not subscribed yet")
        self._pauses = pausing.NONE
        self._elsewhere: dict[UUID, float] = {}
        self.started = asyncio.Event()
        """Set once it takes messages."""

    def stop(self) -> None:
        """Take nothing more; finish what runs, hand back the rest, leave. ``run`` returns when that is done."""
        self._stopped = True
        self._stop.set()
        self._interrupt.stop()
        self._drain_wanted.set()

    async def run(self) -> None:
        """Until ``stop``. Waits out errors of database and broker, and starts anew after one of its own. Raises
        ``SchemaError`` or ``ConfigError`` when it cannot start; cancellation hands back what is in flight and
        leaves."""
        enter_name(self.consumer)
        try:
            while await self._live():
                pass
        except BaseException as error:
            self._over = f"it ended: {reason_of(error)}"
            if self._began and not self._stopped:
                log.error("consumer %s ended, though it was not stopped: %s", self.consumer.name, reason_of(error))
            raise
        finally:
            leave_name(self.consumer)
            await self._database.aclose()
            for source in set(self._sources.values()):
                await within(f"consumer {self.consumer.name}: closing connections", source.aclose, CLEANUP_S)

    async def _live(self) -> bool:
        """From the checks to the end, good or bad; returns whether to start anew."""
        try:
            subscription = await stoppable(self._begin(), self._stop, lambda: False, 0.0, MOMENT_S)
            if subscription is not None:
                await self._work(subscription)
            return False
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or self._stopped:
                raise
            delay_s = self._patience.failed(RuntimeError("something it waited for was cancelled by other code"))
        except Exception as error:
            if not self._began and self._patience.ends(error):
                raise
            delay_s = self._patience.failed(error)
        if self._stopped:
            return False
        # As a process that was started anew: what was in flight is a suspect then, and nothing of it is believed.
        self._interrupt, self._member.owner, self._intake, self._drain = Interrupt(), uuid7(), None, None
        await self._interrupt.sleep(delay_s, lambda: False)
        return not self._stopped

    def health(self) -> ConsumerHealth:
        """From memory, at once."""
        problems = self._problems()
        detail = {
            "consumer": self.consumer.name,
            "topics": list(self.consumer.topics),
            "in_flight": self._in_flight(),
            "draining": len(self._drain) if self._drain else 0,
            "lag": None if self._member.lag is None else dict(self._member.lag),
            **self._member.reading(),
            "running": self._runs.under_way() if self._runs is not None else [],
            "stopping": self._interrupt.stopping,
            "elsewhere": elsewhere(self._elsewhere),
            "gate": self._resources.gate.snapshot(),
            "paused_by_people": self._pauses.snapshot(),
            "dead_letters": self._letters.snapshot() if self._letters else {},
        }
        live = self._lost is None and self._tasks.live
        ready = not problems and not self._interrupt.stopping and self.started.is_set()
        return ConsumerHealth(live, ready, problems, detail, self._vitals.ages())

    @property
    def _lost(self) -> str | None:
        return self._over or self._patience.trouble.text

    def _problems(self) -> dict[str, str]:
        broker = self._broker_trouble.text or (self._intake.problem if self._intake is not None else None)
        found = {"consumer": self._lost, "database": self._database.problem, "broker": broker}
        found["gate"] = self._resources.gate.problem
        late = {} if found["database"] else {f"success of {it}": why for it, why in self._vitals.problems().items()}
        return {**self._tasks.problems, **{name: why for name, why in found.items() if why is not None}, **late}

    async def _begin(self) -> Subscription | None:
        await self._check()
        return await self._subscribe()

    async def _check(self) -> None:
        """Tables there? And in the same database as the handlers' transactions? An outage is waited out."""
        if (short := short_window(self.consumer, self._settings)) is not None:
            log.warning("%s", short)
        while not self._interrupt.stopping:
            try:
                await ensure_ready(self._resources.database, self._resources.settings)
                await self._member.enter(self._resources.database)
                await self._resources.database.run(processes.forget_dead())
                if self.consumer.tx is not None:
                    database, threads = self._resources.database, self._resources.threads
                    for source in set(self._sources.values()):
                        await verify_same_database(source, database, self._catalog(), threads)
                return
            except Exception as error:
                if not self._began and self._patience.ends(error):
                    raise
                self._database.down(reason_of(error), error)
                while self._database.reason is not None and not self._interrupt.stopping:
                    await self._interrupt.sleep(0.05, lambda: False)

    async def _subscribe(self) -> Subscription | None:
        waiting = Patience(f"consumer {self.consumer.name}: subscribing", log, trouble=self._broker_trouble)
        while not self._interrupt.stopping:
            try:
                subscription = await self._resources.broker.subscribe(
                    self.consumer.name, self.consumer.topics, commands=self.consumer.takes_commands
                )
            except Exception as error:
                if not self._began and is_mistake(error):
                    raise
                await self._interrupt.sleep(waiting.failed(error), lambda: False)
                continue
            waiting.worked()
            self._broker_trouble.end()
            return subscription
        return None

    async def _work(self, subscription: Subscription) -> None:
        with contextlib.suppress(Exception):  # it is looked at again in a second
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

        async def on_revoke(shards: Sequence[str]) -> None:
            await intake.revoked(shards, self._settings.stop_timeout_s / 2)

        subscription.on_revoke(on_revoke)
        tasks, stopping = self._tasks, lambda: self._interrupt.stopping
        draining = tasks.keep("draining", drain.run, may_end=stopping)
        beating = tasks.keep("renewing leases", partial(self._member.beat, self._database, subscription))
        beside = (
            tasks.keep("looking at pauses", partial(self._look_at_pauses, shared)),
            tasks.keep("publishing dead letters", letters.run, may_end=stopping),
        )
        taking = asyncio.create_task(intake.run())
        log.info("consumer %s: started on %s", self.consumer.name, ", ".join(self.consumer.topics))
        self._began = True
        self._patience.worked()
        self.started.set()
        timeout_s = self._settings.stop_timeout_s
        try:
            await asyncio.wait([taking])
        except asyncio.CancelledError:
            timeout_s = 0.0
            raise
        finally:
            self._interrupt.stop()
            self._drain_wanted.set()
            if timeout_s:
                await shared.database.look()
            await let_go(shared, *beside, timeout_s / 4)
            await leave(shared, subscription, intake, (taking, draining, beating), stop_timeout_s=timeout_s)
        if not taking.cancelled():
            taking.result()
        elif not self._stopped:
            raise RuntimeError("the task that takes deliveries was cancelled by other code")

    async def _look_at_pauses(self, shared: Shared) -> None:
        """Follow what people paused and resumed, about once a second."""
        while True:
            pauses = await self._database.run(pausing.load, read_only=True)
            self.pulse.beat("pauses")
            if {each.target for each in pauses.all} != {each.target for each in shared.pauses.all}:
                shared.pauses = self._pauses = pauses
                self._interrupt.stir()
                self._drain_wanted.set()
            await asyncio.sleep(pausing.LOOK_S)

    def _in_flight(self) -> int:
        return len(self._intake) if self._intake else 0

    def _catalog(self) -> Catalog:
        database = self._resources.settings.database
        return Catalog(self._resources.database.dialect, database.schema, database.prefix)

    def _shared(self) -> Shared:
        self._elsewhere.clear()
        name, resources = self.consumer.name, self._resources
        runs = self._runs = Runs(
            *(name, self._catalog(), self._sources, resources.slots, resources.threads),
            idle_timeout_s=self._settings.handler_idle_timeout_s or 0.0,
            take_back=lambda id, xid: self._database.run(lambda: inboxing.take_back(name, [id], xid=xid)),
            hangs=Hangs(self._database, answer_s(self._settings.lease_s)),
        )
        return Shared(
            *(name, self._member.owner, self._routes, self.consumer.policy, runs, self._database),
            Journal(name, self._member.owner, self._database),
            *(resources.gate, self._interrupt, self._drain_wanted, self._settings.lease_s),
            *(self.consumer.topics, self._pauses),
            pulse=self.pulse,
            dead_letters=writes_letters(self.consumer, resources.settings),
            counted=not resources.broker.capabilities.keeps_history,
            bounds=bounds_of(self._settings),
            elsewhere=self._elsewhere,
        )

"""A whole relay process: connections, ownership and engine, started in order and let go in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4

from relevo.bounds import answer_s
from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.errors import UnreachableError
from relevo.policy import Policy
from relevo.ports.broker import KeptInOutbox, Publisher
from relevo.ports.database import Database
from relevo.relay.beside import beside, follow, vitals_of
from relevo.relay.chores import Chore
from relevo.relay.counters import Counters
from relevo.relay.engine import RelayEngine
from relevo.relay.partitions import refuse_without
from relevo.relay.reading import reading
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.closing import stoppable, within
from relevo.runtime.patience import Patience, has_answered, is_mistake, is_ours, reason_of
from relevo.runtime.pulse import Pulse
from relevo.runtime.trouble import Trouble
from relevo.runtime.vitals import Vitals
from relevo.settings import Settings, load
from relevo.signals import subscribe
from relevo.storage import duties, pausing
from relevo.storage.ready import ensure_ready
from relevo.tasks import Tasks

log = logging.getLogger("relevo.relay")

LEAVE_S: Final = 1.5
PASSING: Final = (
    "broker.url leads to the tables of database.url: consumers read this outbox themselves, and nothing is moved. This "
    "relay puts scheduled messages into the outbox when they are due, and purges what every group has read"
)


START_S: Final = 10.0
"""How long ``async with Relay`` waits for a start that is in trouble, before the application goes on beside it."""


@dataclass(frozen=True, slots=True)
class RelayHealth:
    """``live``: the loop runs and no task of it has ended. ``ready``: database and every destination answer.
    ``problems``: in plain words. ``ages``: of the last success of each kind of work, with its limit."""

    live: bool
    ready: bool
    problems: dict[str, str]
    detail: dict[str, Any]
    ages: dict[str, Any] = field(default_factory=dict)


class Relay:
    """A relay as a value: ``async with Relay(settings): …`` runs it inside another process (a FastAPI lifespan, a
    worker, a test); ``relevo relay`` runs it alone. Any number of them share the lanes of one outbox."""

    def __init__(self, settings: Settings | None = None, *, name: str | None = None, clock: Clock = SYSTEM) -> None:
        self.settings = settings if settings is not None else load()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.relay_id = uuid4()
        self.clock = clock
        self.engine: RelayEngine | None = None
        self.pulse = Pulse(clock)
        """When it last renewed its leases, took a page, published, settled, and did each chore."""
        self._vitals = Vitals(self.pulse, vitals_of(self.settings.relay))
        self._counters = Counters()
        self._passing = False
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._tasks = Tasks("relay", log)
        self._beside: list[Chore] = []
        self._patience = Patience("relay", log, clock=clock)
        self._reached = self._began = self._serving = self._leaves = False
        self._crashed: str | None = None
        self._over: str | None = None

    @classmethod
    def from_config(cls, path: str | None = None) -> Relay:
        """A relay as ``relevo.toml`` and the environment describe it."""
        return cls(load(path))

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> None:
        """Run until ``stop`` is set: then finish what is in flight, settle it and give the lanes back.

        ``ready`` is called once the first lanes were asked for. Raises ``ConfigError`` or ``SchemaError`` for what an
        operator has to put right before it can start, and ``UnreachableError`` if no database answers at first. From
        then on every error of database or broker is waited for, and an error of the relay's own is logged and followed
        by a start anew.
        """
        self._over = None
        told = [ready] if ready is not None else []
        try:
            while await self._live(stop, told):
                pass
            self._over = "it was stopped"
        except BaseException as error:
            self._over = f"it ended: {reason_of(error)}"
            if self._began and not stop.is_set():
                log.error("the relay ended, though it was not stopped: %s", reason_of(error), exc_info=error)
            raise

    async def _live(self, stop: asyncio.Event, told: list[Callable[[], None]]) -> bool:
        """From connecting to the end, good or bad; returns whether to start anew."""
        try:
            stop_s = self.settings.relay.stop_timeout_s
            moved = await stoppable(self._serve(stop, told), stop, lambda: self._leaves, 0.4 * stop_s, 0.5 * stop_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or stop.is_set():
                raise
            delay_s = self._crash(RuntimeError("something it waited for was cancelled by other code"))
        except Exception as error:
            if self._ends(error):
                raise
            delay_s = self._crash(error) if is_ours(error) else self._patience.failed(error)
        else:
            if moved:
                log.info("the tables are read by another source now: this relay starts anew with it")
            return bool(moved)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await stop.wait()
        return not stop.is_set()

    def _crash(self, error: Exception) -> float:
        self._crashed = f"it failed and starts anew: {reason_of(error)}"
        return self._patience.failed(error)

    def _ends(self, error: Exception) -> bool:
        """Whether ``error`` ends this relay: a mistake that is found at the start, or no database at all."""
        if self._began or (self.engine is not None and self.engine.began):
            self._began = True
            return False
        if is_mistake(error):  # but for a server that refuses us and let us in a moment ago
            return not (self._reached and getattr(error, "sqlstate", None)) and self._patience.ends(error)
        return isinstance(error, UnreachableError) and not self._reached and not has_answered(error)

    async def _serve(self, stop: asyncio.Event, told: list[Callable[[], None]]) -> bool:
        """Run until ``stop``, or until the tables are read by another source: then true, and nothing is in flight."""
        over, tasks, self._leaves = asyncio.Event(), self._tasks, False
        async with self._connected() as engine:
            self.engine = engine
            engine.take_pauses(await engine.database.run(pausing.load(), read_only=True))
            await engine.ownership.tick()
            self.pulse.beat("keeping the lease")
            self.pulse.begin("keeping the lease", "take")
            self._beside = beside(engine, self.settings, self.name, over)
            engine.recovered = self._forgive
            try:
                tasks.keep("following a stop", partial(follow, stop, over), may_end=over.is_set)
                for chore in self._beside:
                    tasks.keep(chore.name, chore.run)
                self._serving, self._leaves, self._crashed = True, True, None
                self._patience.worked()
                while told:
                    told.pop()()
                await engine.run(over)
            finally:
                self._began, self._serving = self._began or engine.began, False
                await tasks.aclose()
                await self._leave(engine)
                self._beside, self._leaves = [], False
            if engine.ownership.moved and not stop.is_set():
                return True
            log.info("stopped: %d published in this process's life", engine.counters.published)
            return False

    async def _leave(self, engine: RelayEngine) -> None:
        """Give lanes and duties back; where the database is away, they wait for the lease to run out."""
        bound_s = min(LEAVE_S, self.settings.relay.stop_timeout_s / 10)
        await within("relay: giving the lanes back", engine.ownership.leave, bound_s)
        await within("relay: giving its duties back", lambda: engine.database.run(duties.leave(self.relay_id)), bound_s)

    def _forgive(self) -> None:
        for chore in self._beside:
            chore.forgive()

    def health(self) -> RelayHealth:
        """What liveness, readiness and status may say, from memory."""
        live, problems = (self._over or self._crashed) is None and self._tasks.live, self._problems()
        return RelayHealth(live, not problems, problems, self._detail(), self._vitals.ages())

    def _problems(self) -> dict[str, str]:
        engine, lost = self.engine, self._over or self._crashed
        problems = dict(self._tasks.problems)
        if lost is not None or not self._serving:
            problems["relay"] = lost or self._patience.trouble.text or "starting"
        if engine is not None:
            problems |= {
                f"destination {topic}": f"{entry.reason} (since {entry.since.isoformat(timespec='seconds')})"
                for topic, entry in engine.destinations.paused.items()
            }
        if engine is not None and (database := engine.unreachable.text) is not None:
            problems["database"] = database  # then its chores have the same
        else:
            problems |= {chore.name: problem for chore in self._beside if (problem := chore.problem) is not None}
            if self._serving:
                problems |= {f"success of {name}": why for name, why in self._vitals.problems().items()}
        return problems

    async def __aenter__(self) -> Relay:
        """Waits for the first lanes; in trouble ``START_S`` at most: then it goes on starting by itself, not ready."""
        self._stop.clear()
        started = asyncio.Event()
        self._running = asyncio.create_task(self.run(self._stop, started.set), name="relevo relay")
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({self._running, waiting}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop.set()
        if self._running is not None and not self._running.cancelled():
            await self._running

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[RelayEngine]:
        settings, relay = self.settings, self.settings.relay
        async with contextlib.AsyncExitStack() as stack:
            database = database_for(settings.database, answer_s=answer_s(relay.lease_s, relay.send_timeout_s))
            stack.push_async_callback(database.aclose)
            await ensure_ready(database, settings)
            self._reached = True
            if settings.retention.then == "partitions":
                refuse_without(database)
            broker = broker_for(settings.broker.url, settings.broker.options)
            publisher = await broker.publisher(source=settings.source_uri, send_timeout_s=settings.relay.send_timeout_s)
            stack.push_async_callback(publisher.aclose)
            self._passing = isinstance(broker, KeptInOutbox) and await broker.is_outbox_of(database)
            if self._passing:
                log.info(PASSING)
            engine = await self._engine(database, publisher)
            stack.callback(engine.wake.close)
            stack.push_async_callback(within, "relay: closing its source", engine.source.aclose, LEAVE_S)
            yield engine

    async def _engine(self, database: Database, publisher: Publisher) -> RelayEngine:
        wake = subscribe()
        source, ownership = await reading(
            database,
            self.settings,
            self.relay_id,
            self.name,
            wake=wake.set,
            detail=self._detail,
            clock=self.clock,
            passing=self._passing,
        )
        policies = {topic: Policy(on_rejected=entry.on_rejected) for topic, entry in self.settings.destinations.items()}
        default = Policy()
        return RelayEngine(
            database,
            source,
            publisher,
            ownership,
            self.settings.relay,
            lambda topic: policies.get(topic, default),
            wake=wake,
            counters=self._counters,
            unreachable=Trouble(self.clock),
            pulse=self.pulse,
            clock=self.clock,
        )

    def _detail(self) -> dict[str, Any]:
        engine = self.engine
        if engine is None:
            return {}
        return {
            **asdict(engine.counters),
            "source": engine.ownership.source,
            "passing": self._passing,
            "lanes": len(engine.ownership.lanes),
            "ages": self._vitals.ages(),
            "problems": self._problems(),
            "paused": engine.destinations.snapshot(),
            "paused_by_people": engine.pauses.now.snapshot(),
        }


async def run_relay(settings: Settings, *, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> Relay:
    """Run one relay until ``stop``; see ``Relay.run``."""
    relay = Relay(settings)
    await relay.run(stop, ready)
    return relay

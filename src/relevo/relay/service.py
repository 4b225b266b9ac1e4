"""A whole relay process: connections, ownership and engine, started in order and let go in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

from relevo.bounds import answer_s
from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.errors import UnreachableError
from relevo.policy import PROBE_BACKOFF, Policy
from relevo.ports.broker import KeptInOutbox, Publisher
from relevo.ports.database import Database
from relevo.relay.chores import keep_doing
from relevo.relay.counters import Counters
from relevo.relay.engine import RelayEngine
from relevo.relay.maintenance import Maintenance
from relevo.relay.mover import Mover
from relevo.relay.partitions import refuse_without
from relevo.relay.reading import reading
from relevo.runtime.classify import is_transient
from relevo.runtime.clock import SYSTEM, Clock
from relevo.runtime.trouble import Trouble
from relevo.settings import Settings, load
from relevo.signals import subscribe
from relevo.storage import duties, pausing
from relevo.storage.ready import ensure_ready

log = logging.getLogger("relevo.relay")

PASSING: Final = (
    "broker.url leads to the tables of database.url: consumers read this outbox themselves, and nothing is moved. This "
    "relay puts scheduled messages into the outbox when they are due, and purges what every group has read"
)


@dataclass(frozen=True, slots=True)
class RelayHealth:
    """``live``: the loop runs. ``ready``: database and every destination answer. ``problems``: in plain words."""

    live: bool
    ready: bool
    problems: dict[str, str]
    detail: dict[str, Any]


class Relay:
    """A relay as a value: ``async with Relay(settings): …`` runs it inside another process (a FastAPI lifespan, a
    worker, a test); ``relevo relay`` runs it alone. Any number of them share the lanes of one outbox."""

    def __init__(self, settings: Settings | None = None, *, name: str | None = None, clock: Clock = SYSTEM) -> None:
        self.settings = settings if settings is not None else load()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.relay_id = uuid4()
        self.clock = clock
        self.engine: RelayEngine | None = None
        self._counters = Counters()
        self._passing = False
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @classmethod
    def from_config(cls, path: str | None = None) -> Relay:
        """A relay as ``relevo.toml`` and the environment describe it."""
        return cls(load(path))

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> None:
        """Run until ``stop`` is set: then finish what is in flight, settle it and give the lanes back.

        ``ready`` is called once the first lanes were asked for. Raises ``ConfigError``, ``SchemaError`` or
        ``UnreachableError`` if it cannot start; once it runs, an outage is waited for.
        """
        again, failures = await self._serve(stop, ready), 0
        while again and not stop.is_set():
            log.info("the tables are read by another source now: this relay starts anew with it")
            try:
                again, failures = await self._serve(stop, None), 0
            except UnreachableError as error:
                failures += 1
                log.warning("%s; waiting for it, nothing is lost", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), PROBE_BACKOFF.delay_s(failures))

    async def _serve(self, stop: asyncio.Event, ready: Callable[[], None] | None) -> bool:
        """Run until ``stop``, or until the tables are read by another source: then true, and nothing is in flight."""
        turn = _Turn(stop)
        async with turn, self._connected() as engine:
            self.engine = engine
            engine.take_pauses(await engine.database.run(pausing.load(), read_only=True))
            await engine.ownership.tick()
            keeper = asyncio.create_task(self._keep_ownership(engine, turn.over))
            chores = [asyncio.create_task(keep_doing(name, chore)) for name, chore in self._chores(engine).items()]
            if ready is not None:
                ready()
            try:
                await _first(engine.run(turn.over), keeper)
            finally:
                for task in (keeper, *chores):
                    task.cancel()
                await asyncio.gather(keeper, *chores, return_exceptions=True)
                with contextlib.suppress(UnreachableError):
                    await asyncio.shield(engine.ownership.leave())
                    await asyncio.shield(engine.database.run(duties.leave(self.relay_id)))
            if engine.ownership.moved and not stop.is_set():
                return True
            log.info("stopped: %d published in this process's life", engine.counters.published)
            return False

    def health(self) -> RelayHealth:
        """What liveness, readiness and status may say, from memory."""
        engine = self.engine
        if engine is None:
            return RelayHealth(True, False, {"relay": "starting"}, {})
        problems = {
            f"destination {topic}": f"{entry.reason} (since {entry.since.isoformat(timespec='seconds')})"
            for topic, entry in engine.destinations.paused.items()
        }
        if (database := engine.unreachable.text) is not None:
            problems["database"] = database
        return RelayHealth(True, not problems, problems, self._detail())

    async def __aenter__(self) -> Relay:
        self._stop.clear()
        started = asyncio.Event()
        self._running = asyncio.create_task(self.run(self._stop, started.set))
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({self._running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop.set()
        if self._running is not None:
            await self._running

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[RelayEngine]:
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            relay = settings.relay
            database = database_for(settings.database, answer_s=answer_s(relay.lease_s, relay.send_timeout_s))
            stack.push_async_callback(database.aclose)
            await ensure_ready(database, settings)
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
            stack.push_async_callback(engine.source.aclose)
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
            clock=self.clock,
        )

    def _chores(self, engine: RelayEngine) -> dict[str, Callable[[], Awaitable[float]]]:
        """What runs beside the engine, by name."""
        lease_s = self.settings.relay.lease_s
        care = Maintenance(engine.database, self.relay_id, self.settings, lease_s, self.clock, self.name)
        mover = Mover(engine.database, self.relay_id, lease_s, engine.wake.set, self.clock)

        async def look_at_pauses() -> float:
            engine.take_pauses(await engine.database.run(pausing.load(), read_only=True))
            return pausing.LOOK_S

        return {
            "looking at pauses": look_at_pauses,
            "moving scheduled messages": mover.turn,
            "purging": care.turn,
        }

    async def _keep_ownership(self, engine: RelayEngine, over: asyncio.Event) -> None:
        """Renew three times per lease, oftener while lanes are on the move. Sets ``over`` when the source was moved."""
        ownership, failures = engine.ownership, 0
        while True:
            interval_s = ownership.lease_s / 3
            if failures:
                interval_s = min(interval_s, PROBE_BACKOFF.delay_s(failures))
            elif not ownership.complete:
                interval_s = min(interval_s, 0.2)
            await asyncio.sleep(interval_s)
            version = ownership.version
            try:
                await ownership.tick()
                failures = 0
            except Exception as error:
                if not is_transient(error):
                    raise
                failures += 1
                log.debug("the lease was not renewed: %s", error)
            if ownership.moved:
                over.set()
            if ownership.version != version:
                engine.wake.set()

    def _detail(self) -> dict[str, Any]:
        engine = self.engine
        if engine is None:
            return {}
        return {
            **asdict(engine.counters),
            "source": engine.ownership.source,
            "passing": self._passing,
            "lanes": len(engine.ownership.lanes),
            "paused": engine.destinations.snapshot(),
            "paused_by_people": engine.pauses.now.snapshot(),
        }


async def _first(running: Any, keeper: asyncio.Task[None]) -> None:
    """Run to the end, unless the keeper of the leases fails for a reason that is not an outage: then stop with it."""
    task = asyncio.create_task(running)
    try:
        await asyncio.wait({task, keeper}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            keeper.result()
        await task
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class _Turn:
    """``over``: set with ``stop``, or by whoever sees that this turn ends before."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.over = asyncio.Event()
        self._stop = stop

    async def __aenter__(self) -> None:
        self._following = asyncio.create_task(self._follow())

    async def __aexit__(self, *exc: object) -> None:
        self._following.cancel()

    async def _follow(self) -> None:
        await self._stop.wait()
        self.over.set()


async def run_relay(settings: Settings, *, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> Relay:
    """Run one relay until ``stop``; see ``Relay.run``."""
    relay = Relay(settings)
    await relay.run(stop, ready)
    return relay

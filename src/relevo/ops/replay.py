"""Replaying: plan (and count), start, resume. The work itself is a job that any later process can take up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from relevo.brokers import broker_for
from relevo.clients import database_for
from relevo.consumer import Consumer
from relevo.consumer.replaying import FENCE_TIMEOUT_S, Replayer
from relevo.errors import MisuseError, RefusedError, UsageError
from relevo.ids import uuid7
from relevo.ops.replay_into import Forwarder
from relevo.ops.replay_pauses import Watch
from relevo.ops.replay_sources import Selection, count, opened
from relevo.ops.replay_turn import Report, Turn, Worker
from relevo.ports.broker import Broker
from relevo.ports.database import Database
from relevo.settings import Settings
from relevo.storage import replaying
from relevo.storage.auditing import Act
from relevo.storage.parking import readable
from relevo.storage.ready import ensure_ready
from relevo.storage.replaying import Mode, Stored


class TypeCount(msgspec.Struct, kw_only=True):
    """``handler``: its name, or why there is none; ``runs``: whether it would run in this mode."""

    type: str
    count: int
    handler: str
    runs: bool


class Plan(msgspec.Struct, kw_only=True):
    """What a replay would do. ``total``: messages that match; ``runs``: of those, with a handler that would run."""

    mode: str
    target: str
    total: int
    runs: int
    types: list[TypeCount]
    to_seq: int = 0


class Replays:
    """One process's way to replay: ``consumer`` and its code, or ``None`` for a replay into a topic. Use as ``async
    with``; ``database`` and ``broker`` given stay open. ``fence_timeout_s``: how long *again*
    waits for transactions that began before it held a key (PostgreSQL)."""

    def __init__(
        self,
        settings: Settings,
        consumer: Consumer | None,
        *,
        database: Database | None = None,
        broker: Broker | None = None,
        fence_timeout_s: float = FENCE_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._given = database
        self.database = database or database_for(settings.database)
        self.broker = broker or broker_for(settings.broker.url, settings.broker.options)
        self._fence_timeout_s = fence_timeout_s
        self._holder = uuid7()

    async def __aenter__(self) -> Replays:
        await ensure_ready(self.database, self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._given is None:
            await self.database.aclose()

    async def plan(self, selection: Selection, mode: Mode) -> Plan:
        """Count; changes nothing."""
        selection = self._checked(selection, mode)
        counts, to_seq = await count(selection, self.database, self.broker)
        types = [self._type(name, number, mode) for name, number in sorted(counts.items())]
        return Plan(
            mode=mode,
            target=selection.into or self._name,
            total=sum(counts.values()),
            runs=sum(each.count for each in types if each.runs),
            types=types,
            to_seq=to_seq,
        )

    async def start(
        self, selection: Selection, plan: Plan, *, mode: Mode, why: str, actor: str, rate: float | None = None
    ) -> UUID:
        """Create the job of ``plan``, audited with it. It does nothing before ``run``."""
        if not why.strip():
            raise UsageError("say why: it is kept in the audit")
        selection = self._checked(selection, mode)
        stored = {**msgspec.to_builtins(selection), "end": plan.to_seq, "consumer": self._name}
        act = Act(f"replay.{mode}", actor, why.strip(), stored)
        keep: dict[str, Any] | None = None
        if selection.source == "outbox":
            keep = {"from_seq": selection.window(plan.to_seq).after + 1, "from_time": selection.since}
        return await self.database.run(replaying.create(act, mode, self._name, rate=rate, total=plan.total, keep=keep))

    async def find(self, job_id: UUID) -> Stored:
        """Raises ``RefusedError`` for an unknown job."""
        stored = await self.database.run(replaying.find(job_id), read_only=True)
        if stored is None:
            raise RefusedError(f"there is no replay {job_id}")
        return stored

    async def run(
        self,
        job_id: UUID,
        stop: asyncio.Event,
        report: Callable[[Report], None] = lambda _: None,
        *,
        rate: float | None = None,
    ) -> Report:
        """Work on the job until its end or ``stop``; what failed before is tried again. ``rate``: messages a second
        from now on, instead of what it was started with. Raises ``RefusedError`` when
        it is done or another process works on it, ``LostOwnershipError`` when this one was replaced."""
        stored = await self.find(job_id)
        if stored.state in ("done", "cancelled"):
            raise RefusedError(f"replay {job_id} is {stored.state}")
        if stored.consumer != self._name:
            raise MisuseError(f"replay {job_id} is of consumer {stored.consumer!r}, not of {self._name!r}")
        if rate is not None:
            stored = stored._replace(rate=rate)
        lease_s = self._settings.consumer.lease_s
        if not await self.database.run(replaying.claim(job_id, self._holder, lease_s)):
            raise RefusedError(f"another process works on replay {job_id}")
        failed = await self.database.run(replaying.failed_ids(job_id), read_only=True)
        filter_ = dict(stored.filter)
        end, _ = int(filter_.pop("end")), filter_.pop("consumer")
        selection = msgspec.convert(filter_, Selection, strict=False)
        watch = Watch(self.database, self._name, selection.into)
        turn = Turn(stored, failed, selection, self.database, self._holder, lease_s, watch, report)
        worker: Worker = await self._worker(stored, selection, stop)
        try:
            async with opened(selection, self.database, self.broker, dict(turn.positions), end) as history:
                await turn.work(history, worker, stop)
        finally:
            await worker.aclose()
        turn.report.held_keys = [f"{topic}/{readable(key)}" for topic, key in worker.held_keys]
        return turn.report

    async def _worker(self, stored: Stored, selection: Selection, stop: asyncio.Event) -> Worker:
        if self._consumer is None:
            publisher = await self.broker.publisher(
                source=self._settings.source_uri, send_timeout_s=self._settings.relay.send_timeout_s
            )
            return Forwarder(publisher, str(selection.into))
        return Replayer(
            self._consumer,
            self._settings,
            self.database,
            stored.mode,
            job_id=stored.job_id,
            generation=stored.generation,
            holder=self._holder,
            fence_timeout_s=self._fence_timeout_s,
            stopping=stop.is_set,
        )

    @property
    def _name(self) -> str:
        return "" if self._consumer is None else self._consumer.name

    def _checked(self, selection: Selection, mode: Mode) -> Selection:
        if (mode == "into") != (selection.into is not None) or (mode == "into") == (self._consumer is not None):
            raise UsageError("a replay is for one consumer (mode repair or again), or into another topic")
        if self._consumer is not None:
            topics = selection.topics or self._consumer.topics
            strange = [topic for topic in topics if topic not in self._consumer.topics]
            if strange:
                raise RefusedError(f"consumer {self._name!r} does not read {', '.join(strange)}")
            selection = msgspec.structs.replace(selection, topics=topics)
        if not selection.topics:
            raise UsageError("say which topic to read: --topic")
        selection.check()
        return selection

    def _type(self, name: str, number: int, mode: Mode) -> TypeCount:
        if self._consumer is None:
            return TypeCount(type=name, count=number, handler="-", runs=True)
        handler = self._consumer.routes().find(name)
        if handler is None:
            return TypeCount(type=name, count=number, handler="(none)", runs=False)
        runs = mode == "again" or handler.on_replay == "apply"
        return TypeCount(type=name, count=number, handler=handler.name, runs=runs)

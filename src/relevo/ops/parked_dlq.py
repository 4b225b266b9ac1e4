"""Dead letters by hand, for teams whose tools live there: parked messages to ``{consumer}.{topic}.dlq``.

Bytes, key and headers are as they were, causes stand beside them as headers. A message leaves its queue only after the
broker confirmed it, in one transaction with its inbox row (discarded), the audit and the job's progress; killed in
between, the batch under way is published again, under the same ids. One process publishes at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from relevo.errors import LostOwnershipError, UsageError
from relevo.ids import uuid7
from relevo.ops.parked import Operator, Tally, count, described
from relevo.ports.broker import Publisher
from relevo.ports.database import Database
from relevo.relay.sending import send
from relevo.runtime.dead_letters import dead_letter, dlq_topic, said
from relevo.runtime.probes import probe
from relevo.script import Script
from relevo.storage import auditing, duties, parking
from relevo.storage.auditing import Act, Job
from relevo.storage.duties import Duty
from relevo.storage.holding import Why
from relevo.storage.parking import Acted, Done, HeldKey, Queued, Selection, readable

BATCH = 200
"""Messages of one key that are under way at once: what a crash may publish twice."""
DUTY = "parked publish"
TAKEN_OVER = "this process stood still until its lease was over, and another one publishes: run the command again"


@dataclass(slots=True)
class Published(Tally):
    """``problems``: keys that stay parked with what was not taken, and why; ``problem_count``: also those that an
    earlier process of this job met. ``total``: messages, as counted when the job began."""

    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    total: int | None = None


def check_side(selection: Selection) -> Selection:
    """The selection, bound to the consumer's side: what a broker refused cannot be given to it as a dead letter."""
    if selection.side == "relay":
        raise UsageError(
            "dead letters are for the consumer's side: what is parked on the relay's side was refused by the broker"
        )
    return replace(selection, side="consumer")


async def topics_of(database: Database, selection: Selection) -> list[str]:
    """The dead-letter topics that ``publish`` of this selection would write to."""
    found: set[str] = set()
    after: Mapping[str, Any] = {}
    while True:
        keys = await database.run(parking.page(selection, state="parked", after=after, limit=500), read_only=True)
        found.update(dlq_topic(key.id.consumer, key.id.topic) for key in keys)
        if len(keys) < 500:
            return sorted(found)
        after = keys[-1].place


async def publish(
    database: Database,
    publisher: Publisher,
    selection: Selection,
    operator: Operator,
    *,
    lease_s: float = 15.0,
    rate: float | None = None,
    report: Callable[[Published], None] = lambda tally: None,
    waits: Callable[[], None] = lambda: None,
) -> Published:
    """Move every message of every parked key of ``selection`` to its dead-letter topic, in order; ``rate``: messages a
    second. Takes up an unfinished job of the same selection.

    While another process publishes, or one that was killed may still come back, ``waits`` is called and it is waited
    for. Raises ``LostOwnershipError`` when this one was taken for dead, ``UnreachableError``; both can be resumed.
    """
    holder = uuid7()
    duty = await _take(database, holder, lease_s, waits)
    try:
        act = Act("parked.publish", operator.actor, operator.reason, selection.document())
        total = (await count(database, selection)).messages
        job = await database.run(auditing.begin(act, rate=rate, total=total))
        work = _Publishing(database, publisher, act, job, duty, lease_s, rate, report)
        return await work.run(selection)
    finally:
        await asyncio.shield(database.run(duties.leave(holder)))


async def _take(database: Database, holder: UUID, lease_s: float, waits: Callable[[], None]) -> Duty:
    waited = False
    while (duty := await database.run(duties.take(DUTY, holder, lease_s))) is None:
        if not waited:
            waits()
        waited = True
        await asyncio.sleep(min(0.5, lease_s / 4))
    return duty


class _Publishing:
    """One process's turn at the job. ``cursor``: ``after``, the place of the last key that is done with, and
    ``problems``, how many were not."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        act: Act,
        job: Job,
        duty: Duty,
        lease_s: float,
        rate: float | None,
        report: Callable[[Published], None],
    ) -> None:
        self._database, self._publisher, self._act, self._job = database, publisher, act, job
        self._duty, self._lease_s, self._rate, self._report = duty, lease_s, rate, report
        self._loop = asyncio.get_running_loop()
        self._began = self._renewed = self._loop.time()
        self._after: Mapping[str, Any] = job.cursor.get("after", {})
        resumed = job.done > 0 or bool(job.cursor)
        problems = int(job.cursor.get("problems", 0))
        self.tally = Published(job_id=job.job_id, resumed=resumed, problem_count=problems, total=job.total)

    async def run(self, selection: Selection) -> Published:
        tally = self.tally
        while keys := await self._database.run(
            parking.page(selection, state="parked", after=self._after, limit=100), read_only=True
        ):
            for key in keys:
                if not await self._key(key):
                    tally.cancelled = True
                    return tally
                self._report(tally)
        tally.cancelled = not await self._database.run(self._end())
        return tally

    async def _key(self, key: HeldKey) -> bool:
        """Until it is live, or stays as it is with a problem. False: the job was cancelled."""
        epoch = await self._database.run(parking.epoch(key.id))
        if not isinstance(epoch, int):
            self.tally.busy += 1
            return await self._stays(key, "it is not parked any more")
        limit = BATCH if self._rate is None else max(1, min(BATCH, int(self._rate / 4)))
        while True:
            await self._renew()
            if not await self._database.run(auditing.running(self._job.job_id), read_only=True):
                return False
            queue = await self._database.run(parking.queue(key.id, limit=limit), read_only=True)
            outcomes = await send(self._publisher, [_letter(key, queued) for queued in queue])
            probe("parked.published")
            taken = queue[: min(outcomes)] if outcomes else queue
            done, going_on = await self._database.run(self._gone(key, epoch, taken, over=not outcomes))
            if not isinstance(done, Acted):
                return going_on and await self._stays(
                    key, "somebody else changed it meanwhile; what was published may come twice"
                )
            probe("parked.moved")
            self.tally.messages += done.messages
            if done.live:
                self.tally.keys += 1
                return going_on
            if outcomes:
                return going_on and await self._stays(key, said(outcomes[min(outcomes)]))
            if not going_on:
                return False
            if self._rate is not None:
                await asyncio.sleep(max(0.0, self._began + self.tally.messages / self._rate - self._loop.time()))

    async def _renew(self) -> None:
        if self._loop.time() < self._renewed + self._lease_s / 3:
            return
        self._renewed = self._loop.time()
        if await self._database.run(duties.take(DUTY, self._duty.holder, self._lease_s)) is None:
            raise LostOwnershipError(TAKEN_OVER)

    def _gone(self, key: HeldKey, epoch: int, taken: Sequence[Queued], *, over: bool) -> Script[tuple[Done, bool]]:
        """What was confirmed leaves its queue, also when the job was cancelled meanwhile (false)."""
        yield from duties.hold(self._duty)
        going_on = (yield from auditing.locked(self._job.job_id)) is not None
        done = yield from parking.drop_some(key.id, epoch, [queued.held_seq for queued in taken])
        if isinstance(done, Acted):
            if done.messages:
                ids = [str(queued.message.event_id) for queued in taken]
                detail = {**described(key.id), "event_ids": ids}
                yield from auditing.record(self._act, done.messages, detail=detail, job_id=self._job.job_id)
            if done.live and over:
                self._after = key.place
            yield from auditing.advance(self._job.job_id, cursor=self._cursor(), done=done.messages)
        return done, going_on

    async def _stays(self, key: HeldKey, problem: str) -> bool:
        """Pass it by and remember why."""
        self.tally.problems.append(f"key {readable(key.id.key)!r} of {key.id.topic}: {problem}")
        self.tally.problem_count += 1
        self._after = key.place

        def pass_by() -> Script[bool]:
            yield from duties.hold(self._duty)
            going_on = yield from auditing.locked(self._job.job_id)
            yield from auditing.advance(self._job.job_id, cursor=self._cursor(), done=0)
            return going_on is not None

        return await self._database.run(pass_by())

    def _cursor(self) -> dict[str, Any]:
        return {"after": dict(self._after), "problems": self.tally.problem_count}

    def _end(self) -> Script[bool]:
        if (yield from auditing.locked(self._job.job_id)) is None:
            return False
        yield from auditing.finish(self._job.job_id, "failed" if self.tally.problem_count else "done")
        return True


def _letter(key: HeldKey, queued: Queued) -> Any:
    why = Why(key.reason, key.error_type)
    return dead_letter(
        key.id, queued.message, position=queued.position, shard=queued.shard, why=why, attempts=key.attempts
    )

"""Draining: held keys that are due are worked off by any process of the consumer, head by head, under a claim.

Order holds because arrivals queue behind under the key's lock, and because the inbox absorbs a head that two processes
run. Whatever empties the queue under that lock makes the key live.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from relevo.consumer.elsewhere import ELSEWHERE_S, Elsewhere
from relevo.consumer.letters import given_up
from relevo.consumer.losses import DatabaseLost, Losses, passes, unknown_end
from relevo.consumer.runs import Gone, Result, follow
from relevo.consumer.shared import CONFLICTS_MAX, Shared, killer, unhandled, why
from relevo.consumer.work import drained
from relevo.decide import Again, HandBack, LookUp, Park, Pause, Settle, Skip, Wait
from relevo.outcome import Ambiguous, Conflict, Duplicate, Failed, RejectAsked
from relevo.runtime.probes import probe
from relevo.runtime.texts import clean
from relevo.script import Script
from relevo.storage import holding, inboxing
from relevo.storage.holding import Claimed, Head, HeldState, Lost, Why

log = logging.getLogger("relevo.consumer")

POLL_S = 1.0
"""How often held keys are looked for when none is known to be due: another process may have held or released some."""
FAILED_S = 5.0
"""How long a key whose draining failed, for a reason that is not its message's, is left alone."""
BUSY_S = 0.25
"""How long to wait when what is due is being claimed by somebody else."""

_LOOKED = Elsewhere("another process runs this message just now")
"""Found out before the attempt was counted."""


class Drain:
    """Runs until the engine stops; at most ``keys_max`` keys at once."""

    def __init__(self, shared: Shared, keys_max: int) -> None:
        self._shared = shared
        self._keys_max = keys_max
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self) -> None:
        """Claim what is due and drain it. Ends when the engine is stopping, with the claims given up."""
        shared = self._shared
        try:
            while not shared.interrupt.stopping:
                shared.drain_wanted.clear()
                due_s = await shared.database.run(lambda: holding.next_due("consumer", shared.name), read_only=True)
                free = self._keys_max - len(self._tasks)
                if due_s == 0 and free and await self._claim(free):
                    continue
                await self._wait(POLL_S if due_s is None or not free else max(0.05, min(due_s or BUSY_S, POLL_S)))
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _claim(self, free: int) -> bool:
        shared = self._shared
        claims = await shared.database.run(
            lambda: holding.claim_due("consumer", shared.name, shared.owner, shared.lease_s, free)
        )
        for claim in claims:
            task = asyncio.create_task(self._drain(claim))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return bool(claims)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._shared.drain_wanted.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("draining a key failed; it is drained again after a while", exc_info=error)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._shared.drain_wanted.wait()
        except TimeoutError:
            pass

    async def _drain(self, claim: Claimed) -> None:
        """One key, until it is empty, fails, is lost, or the engine stops."""
        shared = self._shared
        suspect, spend, conflicts, losses = claim.suspect, 1, 0, Losses()
        try:
            while not shared.interrupt.stopping and not shared.stopped(claim.id):
                await shared.database.up()
                head, outcome = await self._run_head(claim, suspect, spend)
                if head is None:
                    return
                if isinstance(outcome, Elsewhere):
                    refund = spend if outcome is not _LOOKED else 0
                    await shared.database.run(partial(holding.later, claim, refund=refund, delay_s=ELSEWHERE_S))
                    return
                outcome, losses = await self._weighed(head, outcome, losses)
                if isinstance(outcome, Gone):
                    shared.runs.reports.lost(claim.id.topic, claim.id.key)
                    return
                conflicts = conflicts + 1 if isinstance(outcome, Conflict) else 0
                if isinstance(outcome, Conflict) and conflicts > CONFLICTS_MAX:
                    outcome = Failed("conflict", outcome.reason)
                again = await self._act(claim, head, outcome)
                if again is None:
                    return
                spend = again
                suspect = suspect and again == 0
            await shared.database.run(lambda: holding.release(claim, refund=0))
        except asyncio.CancelledError:
            await self._give_up(claim)
            raise
        except BaseException:
            # The claim would be renewed as long as this process lives.
            await self._give_up(claim, after_s=FAILED_S)
            raise

    async def _run_head(self, claim: Claimed, suspect: bool, spend: int) -> tuple[Head | None, Result]:
        """The head and what came of it; ``None``: there is none for us. Its attempt is counted before it runs."""
        shared = self._shared
        if not suspect:
            head = await self._head(claim, spend)
            if head is None:
                return None, Gone()
            async with shared.gate.beside_others():
                return head, await self._attempt(claim, head, suspect)
        head = await self._head(claim, 0)
        handler = None if head is None else shared.routes.find(head.message.type)
        if head is None or handler is None:
            return head, Gone() if head is None else await self._attempt(claim, head, suspect)
        async with shared.looking:
            if (await shared.runs.look(handler, head.message)) is not None:
                return head, _LOOKED
        what = f"held message {head.message.event_id} of consumer {shared.name}"
        async with shared.gate.alone(what, last=head.attempts + spend >= handler.policy.retry.attempts):
            head = await self._head(claim, spend)
            return (None, Gone()) if head is None else (head, await self._attempt(claim, head, suspect))

    async def _head(self, claim: Claimed, spend: int) -> Head | None:
        """``None``: the queue is empty, so the key is live, or another process has the key by now."""
        take = partial(holding.head, claim, lease_s=self._shared.lease_s, spend=spend)
        head = await self._shared.database.run(take)
        if not isinstance(head, Lost):
            return head
        self._shared.runs.reports.lost(claim.id.topic, claim.id.key)
        return None

    async def _attempt(self, claim: Claimed, head: Head, suspect: bool) -> Result:
        shared, message = self._shared, head.message
        if head.unreadable is not None:
            return RejectAsked(clean(head.unreadable), "Unreadable")
        handler = shared.routes.find(message.type)
        if handler is None:
            return unhandled(message, None)
        if suspect and head.attempts > handler.policy.retry.attempts:
            return killer(head.attempts - 1)
        steps = drained(shared.name, claim, message, head.held_seq, shared.bounds)
        return await shared.runs.once(handler, message, steps, head.attempts)

    async def _weighed(self, head: Head, outcome: Result, losses: Losses) -> tuple[Result, Losses]:
        """As ``Messages`` does it, and what is to be remembered of it."""
        shared, message = self._shared, head.message
        if isinstance(outcome, Ambiguous):
            if await shared.database.run(lambda: inboxing.find(shared.name, message.event_id)):
                return Duplicate(), Losses()
            outcome = unknown_end(outcome)
        if isinstance(outcome, DatabaseLost):
            return await losses.weigh(outcome, shared), losses
        return outcome, losses if passes(outcome) else Losses()

    async def _act(self, claim: Claimed, head: Head, outcome: Result) -> int | None:
        """``None``: the key is given up. Else attempts to spend on the next run: 1, or 0 for the same head again."""
        shared, message = self._shared, head.message
        policy = shared.policy_of(shared.routes.find(message.type))
        # What cannot be read is kept, even if the policy says otherwise: a copy of it could not be brought back.
        decision = follow(outcome, head.attempts, policy) if head.unreadable is None else Park(head.unreadable)
        match decision:
            case Settle():
                shared.database.worked()
                shared.commits += 1
                probe("consumer.drained")
                return 1
            case Again(delay_s, reason, counts):
                if counts:
                    self._failed(head, outcome, reason, delay_s)
                else:
                    shared.runs.reports.conflict(message, reason)
                if delay_s > policy.inline_retry_s:
                    await self._put_back(claim, outcome, reason, "waiting", head.attempts, delay_s)
                    return None
                await shared.interrupt.sleep(delay_s, lambda: False)
                return int(counts)
            case Wait(delay_s, reason):
                self._failed(head, outcome, reason, delay_s)
                await self._put_back(claim, outcome, reason, "waiting", head.attempts, delay_s)
            case Park(reason):
                await self._park(claim, head, why(reason, outcome))
                letter = shared.dead_letters and head.unreadable is None
                shared.runs.reports.parked(*(message, outcome, reason), attempts=head.attempts, letter=letter)
            case Skip(reason):
                done = await shared.database.run(lambda: self._skip(claim, head, why(reason, outcome)))
                shared.letters_wanted.set()
                if done:
                    shared.runs.reports.skipped(
                        *(message, outcome, reason), attempts=head.attempts, letter=shared.dead_letters
                    )
                return 1 if done else None
            case LookUp():
                raise AssertionError("an unknown end is looked up before it is decided about")
            case Pause(reason):
                shared.database.down(reason)
                return 0
            case HandBack():
                await shared.database.run(lambda: holding.release(claim, refund=1))
        return None

    def _failed(self, head: Head, outcome: Result, reason: str, next_s: float) -> None:
        """Log an attempt that failed and is followed by another."""
        shared, message = self._shared, head.message
        of = shared.policy_of(shared.routes.find(message.type)).retry.attempts
        shared.runs.reports.again(message, outcome, reason, attempt=head.attempts, of=of, next_s=next_s)

    def _skip(self, claim: Claimed, head: Head, because: Why) -> Script[bool]:
        yield from inboxing.insert(self._shared.name, head.message.event_id, outcome="skipped")
        ours = yield from holding.remove(claim, head.held_seq)
        if ours:
            yield from self._letter(claim, head, because)
        return ours

    async def _park(self, claim: Claimed, head: Head, because: Why) -> None:
        def park() -> Script[None]:
            put = yield from holding.put_back(claim, state="parked", why=because, attempts=head.attempts, delay_s=None)
            if put and head.unreadable is None:
                yield from self._letter(claim, head, because)

        await self._shared.database.run(park)
        self._shared.drain_wanted.set()
        self._shared.letters_wanted.set()

    def _letter(self, claim: Claimed, head: Head, because: Why) -> Script[None]:
        return given_up(
            self._shared,
            claim.id,
            head.message,
            position=head.position,
            shard=head.shard,
            why=because,
            attempts=head.attempts,
        )

    async def _put_back(
        self, claim: Claimed, outcome: Result, reason: str, state: HeldState, attempts: int, delay_s: float | None
    ) -> None:
        await self._shared.database.run(
            lambda: holding.put_back(claim, state=state, why=why(reason, outcome), attempts=attempts, delay_s=delay_s)
        )
        self._shared.drain_wanted.set()

    async def _give_up(self, claim: Claimed, after_s: float = 0.0) -> None:
        """Cancelled, or failed: hand the key back if the database answers soon; else its lease runs out."""
        await self._shared.interrupt.sleep(after_s, lambda: False)
        try:
            async with asyncio.timeout(1.0):
                await self._shared.database.run(lambda: holding.release(claim, refund=1))
        except Exception:
            log.debug("a claim could not be given up; its lease runs out", exc_info=True)

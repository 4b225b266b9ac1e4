"""One effect in hand: perform it, or ask about it, and write down what is known then.

The order is the promise: *sent* is committed before the act, so that an outcome that gets lost is seen; and the clock
is looked at after that commit, just before the act, so that a process that was frozen meanwhile does not act.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from relevo.decide import DELAY_MAX_S
from relevo.effects import reporting
from relevo.effects.calling import SLACK_S, awaited, called, done_with, in_thread, on_loop, stopped, value_of, within
from relevo.effects.declaring import Effect, EffectRequest
from relevo.effects.recorder import Recorder
from relevo.effects.verdicts import Done, EffectRefused, NotDone, Unknown
from relevo.runtime.calls import ours
from relevo.runtime.clock import boottime_s
from relevo.runtime.patience import reason_of
from relevo.runtime.probes import probe
from relevo.runtime.returned import end, is_awaitable
from relevo.runtime.texts import clean, describe
from relevo.script import Script
from relevo.storage import effecting
from relevo.storage.effecting import Claim, EffectState
from relevo.total import attribute, delay_of, name_of, text_of, text_of_error

log = logging.getLogger("relevo.effects")

NEVER_S: Final = 10 * effecting.PERSON_S
"""Due so late that it waits for a person."""
RESULT_BYTES_MAX: Final = 1_000_000
NOT_KEPT: Final = '"(a result that the database refused)"'


@dataclass(frozen=True, slots=True)
class _Outcome:
    state: EffectState
    result: str | None = None
    error_type: str | None = None
    error: str | None = None
    delay_s: float = 0.0
    asked: int = 0


class Performer:
    """Performs effects of one declaration. ``clock``: seconds that also count a suspend."""

    def __init__(
        self, effect: Effect, recorder: Recorder, clock: Callable[[], float] = boottime_s, *, lease_s: float = 30.0
    ) -> None:
        self._effect = effect
        self._lease_s = lease_s
        self._recorder = recorder
        self._clock = clock

    async def work(self, claim: Claim, act_before: float) -> None:
        """Until it is settled or given up. ``act_before``: by ``clock``, the last moment at which the act may begin, so
        that its time-out ends within the lease. Never raises for what the act does."""
        probe("effect.claimed")
        if claim.unreadable is not None:  # what was sent before may have been done; the rest was not
            state: EffectState = "unknown" if claim.state == "unknown" else "failed"
            if state == "unknown":
                reporting.unknown(claim, "Unreadable", claim.unreadable, by_itself=False)
            await self._settle(claim, _Outcome(state, None, "Unreadable", clean(claim.unreadable), NEVER_S))
            return
        if claim.state == "unknown" and self._effect.verify is not None:
            await self._settle(claim, await self._ask(claim))
            return
        if claim.state == "unknown" and claim.attempts >= self._effect.retry.attempts:
            await self._settle(claim, self._left(claim, claim.attempts, "Unknown", "sent again too often"))
            return
        try:
            attempt = await self._recorder.sent(claim)
        except Exception as error:  # noqa: BLE001 - whether it was committed or not: the act has not begun
            log.warning("effect %s/%s is not performed now: %s", *_id(claim), reason_of(error))
            await self._recorder.tell(claim, "not performed", lambda: _untouched(claim))
            return
        if attempt is None:
            return
        probe("effect.sent")
        if self._clock() >= act_before:
            log.warning("effect %s/%s: this process stood still until its lease was over; not done", *_id(claim))
            await self._recorder.tell(claim, "not performed", lambda: _untouched(claim))
            return
        try:
            outcome = await self._act(claim, attempt)
        except asyncio.CancelledError:
            left = self._left(claim, attempt, "Cancelled", "the process left while it was being performed")
            await asyncio.shield(asyncio.ensure_future(self._settle(claim, left)))
            raise
        await self._settle(claim, outcome)

    async def _act(self, claim: Claim, attempt: int) -> _Outcome:
        effect = self._effect
        try:
            result = await self._perform(claim, attempt)
            probe("effect.acted")
            return _Outcome("done", _json(result))
        except EffectRefused as error:
            return _Outcome("failed", None, *describe(error))
        except NotDone as error:
            return self._again(error, attempt)
        except TimeoutError as error:  # ours, or one that the act itself raised
            text = text_of_error(error) or f"no answer within {effect.timeout_s:g} s"
            return self._left(claim, attempt, "TimeoutError", clean(text))
        except BaseException as error:
            if ours(error):
                raise
            return self._left(claim, attempt, *describe(error))  # it may have been done before this was raised

    async def _perform(self, claim: Claim, attempt: int) -> Any:
        """The act within its time-out. A coroutine is cancelled then."""
        effect = self._effect
        request = _request(claim, attempt)
        if effect.is_async:
            return done_with(await self._ended(claim, on_loop(effect.function(request))))
        result = await self._ended(claim, in_thread(lambda: effect.function(request)))
        if is_awaitable(result):
            result = await self._ended(claim, on_loop(awaited(result)))
        return done_with(result)

    async def _ended(self, claim: Claim, acting: asyncio.Future[Any]) -> Any:
        """What it returns. A thread cannot be stopped, nor can a coroutine that does not let itself be cancelled: while
        it runs, nothing may ask or act again. The effect is shown as *unknown* and kept under its lease, and what the
        act says in the end counts."""
        effect = self._effect
        try:
            if isinstance(acting, asyncio.Task):
                await asyncio.wait({acting}, timeout=effect.timeout_s)
                if not await stopped(acting) and acting.done():
                    raise TimeoutError
            else:  # Ready-made acts end by themselves when their time is over; the lease has room for a moment more
                slack_s = min(SLACK_S, (self._lease_s - effect.timeout_s) / 4)
                await asyncio.wait({acting}, timeout=effect.timeout_s + slack_s)
            if not acting.done():
                await self._outlasted(claim, acting)
            return value_of(acting.result())
        except asyncio.CancelledError as error:
            if ours(error) and isinstance(acting, asyncio.Task) and await stopped(acting):
                return value_of(acting.result())
            raise
        finally:
            acting.cancel()

    async def _outlasted(self, claim: Claim, acting: asyncio.Future[Any]) -> None:
        """Until it ends. Raises ``TimeoutError`` if another process has the effect by then."""
        text = f"no answer within {self._effect.timeout_s:g} s, and it still runs"
        log.warning("effect %s/%s: %s; it is waited for, since it cannot be stopped", *_id(claim), text)
        while not acting.done():
            if not await self._still_ours(claim, text):
                raise TimeoutError
            await asyncio.wait({acting}, timeout=self._lease_s / 3)

    async def _still_ours(self, claim: Claim, text: str) -> bool:
        try:
            return await self._recorder.database.run(effecting.hang(claim, text, self._lease_s))
        except Exception as error:  # noqa: BLE001 - asked again soon; until then the lease says so
            log.warning("effect %s/%s: that it still runs cannot be written down: %s", *_id(claim), reason_of(error))
            return True

    async def _ask(self, claim: Claim) -> _Outcome:
        """``verify`` only looks, so it may be called as often as needed."""
        effect, asked = self._effect, claim.asked + 1
        assert effect.verify is not None
        later = partial(_Outcome, "unknown", None, delay_s=effect.retry.delay_s(asked), asked=asked)
        try:
            verdict = await within(effect.timeout_s, called(effect.verify, _request(claim, claim.attempts)))
        except NotDone as error:
            verdict = error
        except TimeoutError:
            return later(error_type="TimeoutError", error=f"verify gave no answer within {effect.timeout_s:g} s")
        except BaseException as error:
            if ours(error):
                raise
            error_type, text = describe(error)  # a look that failed says nothing about the act
            return later(error_type=error_type, error=clean(f"verify failed: {text}"))
        kind = type(verdict)
        if issubclass(kind, Done):
            return _Outcome("done", _json(attribute(verdict, "result")))
        if issubclass(kind, NotDone):
            return self._again(verdict, claim.attempts)
        if issubclass(kind, Unknown):
            said = text_of(attribute(verdict, "reason"))
            return later(error_type="Unknown", error=clean(f"verify cannot tell yet: {said}"))
        end(verdict)
        said = clean(name_of(kind), 200)
        return later(error_type="Misuse", error=f"verify returned {said}: it returns Done, NotDone or Unknown")

    def _again(self, error: NotDone, attempt: int) -> _Outcome:
        retry = self._effect.retry
        error_type, text = describe(error)
        if attempt >= retry.attempts:
            return _Outcome("failed", None, error_type, clean(f"given up after {attempt} attempts: {text}"))
        asked = delay_of(attribute(error, "retry_after_s"))  # a class derived from it may have none
        delay_s = retry.delay_s(max(1, attempt)) if asked is None else min(asked.total_seconds(), DELAY_MAX_S)
        return _Outcome("pending", None, error_type, text, delay_s)

    def _left(self, claim: Claim, attempt: int, error_type: str, text: str) -> _Outcome:
        """The outcome is unknown. Asked or sent again after a while if that is safe; else a person decides."""
        effect = self._effect
        by_itself = effect.verify is not None or (effect.idempotent and attempt < effect.retry.attempts)
        reporting.unknown(claim, error_type, text, by_itself=by_itself)
        delay_s = effect.retry.delay_s(max(1, attempt)) if by_itself else NEVER_S
        return _Outcome("unknown", None, error_type, text, delay_s)

    async def _settle(self, claim: Claim, outcome: _Outcome) -> None:
        """Write it down, however long the database is away: nobody else knows it."""
        plain = replace(outcome, result=None if outcome.result is None else NOT_KEPT)
        known = await self._recorder.tell(
            claim, outcome.state, lambda: self._finish(claim, outcome), lambda: self._finish(claim, plain)
        )
        if known:
            probe("effect.recorded")
            reporting.settled(claim, outcome, self._effect.retry.attempts)
        else:
            log.warning("effect %s/%s: another process has it by now; %s is not recorded", *_id(claim), outcome.state)

    def _finish(self, claim: Claim, outcome: _Outcome) -> Script[bool]:
        return effecting.finish(
            claim,
            outcome.state,
            result=outcome.result,
            error_type=outcome.error_type,
            error=outcome.error,
            delay_s=outcome.delay_s,
            asked=outcome.asked,
        )


def _untouched(claim: Claim) -> Script[bool]:
    """The act has not begun, and no other process has the effect: as it was before it was claimed."""
    if not (yield from effecting.unsent(claim)):
        yield from effecting.release(claim)
    return True


def _id(claim: Claim) -> tuple[str, str]:
    return claim.name, claim.key


def _request(claim: Claim, attempt: int) -> EffectRequest:
    return EffectRequest(
        name=claim.name,
        key=claim.key,
        data=claim.data,
        idempotency_key=claim.idempotency_key,
        attempt=attempt,
        event_id=claim.event_id,
        consumer=claim.consumer,
    )


def _json(result: Any) -> str:
    """The result as JSON text; what JSON cannot hold is stored as its text: the act is done, whatever it returned."""
    name = clean(name_of(type(result)), 200)
    try:
        encoded = msgspec.json.encode(result, enc_hook=clean)
        if len(encoded) > RESULT_BYTES_MAX:
            return _text(f"(a {name} of {len(encoded)} bytes as JSON, more than is kept)")
        msgspec.json.decode(encoded)  # a ``Raw`` is written as it is
        text = encoded.decode()
        return text if "\\u0000" not in text else _text(clean(result))
    except BaseException:  # noqa: BLE001 - it is done, even if its result raises
        return _text(f"(a {name} that JSON cannot hold)")


def _text(text: str) -> str:
    return msgspec.json.encode(text).decode()

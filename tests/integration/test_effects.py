"""Effects: recorded with the data, performed once, and what each way to end leaves behind. On both databases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from relevo import Backoff, Consumer, Event
from relevo.clients import database_for
from relevo.consumer import ConsumerRunner
from relevo.effects import Done, EffectRefused, EffectRequest, NotDone, Registry, Unknown, effect, once
from relevo.errors import ConfigError, ForgottenAwaitError, NotInTransactionError, RefusedError, UsageError
from relevo.ops import effects as ops
from relevo.storage.effecting import idempotency_key
from tests.support.consumers import FAST, order
from tests.support.consumers import settings_for as consumer_settings
from tests.support.effects import attempts, performing, record, states
from tests.support.events import OrderPlaced
from tests.support.fake_subscription import FakeBroker
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

QUICK = Backoff(attempts=3, base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20))


async def test_performed_once_however_often_it_is_recorded(store: Store) -> None:
    """Two recordings of a key are one effect with the data of the first; a rolled back one is none."""
    seen: list[EffectRequest] = []

    @effect("charge-card", registry=Registry())
    async def charge(request: EffectRequest) -> dict[str, int]:
        seen.append(request)
        return {"receipt": 7}

    with contextlib.closing(store.connect()) as connection:
        if not store.is_postgres:
            connection.execute("begin")
        assert once(connection, charge, key="rolled-back") is True
        connection.rollback()
    assert record(store, charge, "o-1", {"cents": 42}) is True
    assert record(store, "charge-card", "o-1", {"cents": 99}) is False
    async with performing([charge], store):
        await eventually(lambda: states(store) == {"o-1": "done"}, what="the effect is done")
    assert [(request.key, request.data, request.attempt) for request in seen] == [("o-1", {"cents": 42}, 1)]
    assert seen[0].idempotency_key == idempotency_key("charge-card", "o-1")
    assert "receipt" in str(store.query("select result from relevo_effect")[0][0])


async def test_recorded_by_a_handler_performed_after_its_commit(store: Store) -> None:
    """A handler records it and fails once: the effect is there once, with the message that caused it, and is performed
    by the consumer's own process."""
    seen: list[EffectRequest] = []
    runs: list[int] = []

    @effect("charge-card", registry=Registry())
    def charge(request: EffectRequest) -> None:
        seen.append(request)

    billing = Consumer("billing", ["shop.order"], retry=FAST)

    @billing.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], tx: Any) -> None:
        once(tx, charge, key=event.data.order_id)
        runs.append(event.data.order_id)
        if len(runs) == 1:
            raise RuntimeError("after the recording")

    message = order(5)
    broker = FakeBroker()
    broker.append(message)
    runner = ConsumerRunner(billing, consumer_settings(store), broker=broker, effects=[charge])
    task = asyncio.create_task(runner.run())
    await eventually(lambda: states(store) == {"5": "done"}, what="the effect is done")
    runner.stop()
    await task
    assert runs == [5, 5]
    assert [(request.event_id, request.consumer) for request in seen] == [(message.event_id, "billing")]


ENDINGS: dict[str, tuple[Any, str, int]] = {
    "refused": (EffectRefused("the card is stolen"), "failed", 1),
    "not done, for ever": (NotDone("busy", retry_after=0.005), "failed", 3),
    "some exception": (ConnectionResetError("the line broke"), "unknown", 1),
    "the handler's exit": (SystemExit(3), "unknown", 1),
}


@pytest.mark.parametrize("how", ENDINGS)
async def test_each_way_to_end_has_its_state(store: Store, how: str) -> None:
    """Refused: failed. Surely not done: tried again, then failed. Anything else after sending: unknown, and never
    repeated by guess."""
    error, state, count = ENDINGS[how]
    calls: list[int] = []

    @effect("act", retry=QUICK, registry=Registry())
    def act(request: EffectRequest) -> None:
        calls.append(request.attempt)
        raise error

    record(store, act, "k")
    async with performing([act], store):
        await eventually(lambda: states(store) == {"k": state}, what=state)
        record(store, act, "later")
        await eventually(lambda: states(store)["later"] == state, what="the runner has turned since")
    assert attempts(store) == {"k": count, "later": count}
    assert len(calls) == 2 * count


async def test_an_act_that_hangs_is_unknown_until_it_ends(store: Store) -> None:
    """``timeout_s`` over: shown as unknown; a thread cannot be stopped, so what it says in the end counts."""
    release = threading.Event()

    @effect("act", timeout_s=0.05, registry=Registry())
    def act(request: EffectRequest) -> None:
        release.wait(20)

    record(store, act, "k")
    async with performing([act], store):
        await eventually(lambda: states(store) == {"k": "unknown"}, what="unknown")
        assert "no answer within 0.05 s" in store.query("select error from relevo_effect")[0][0]
        release.set()
        await eventually(lambda: states(store) == {"k": "done"}, what="its own word")
    assert attempts(store) == {"k": 1}


async def test_nobody_asks_or_acts_while_an_act_still_runs(store: Store) -> None:
    """The time-out is over and ``verify`` would say that it was not done, since it was not done yet: that may not lead
    to a second act beside the first."""
    release = threading.Event()
    acts: list[int] = []
    asked: list[int] = []

    async def look_up(request: EffectRequest) -> Any:
        asked.append(1)
        raise NotDone("nothing there")

    @effect("act", timeout_s=0.05, verify=look_up, retry=QUICK, registry=Registry())
    def act(request: EffectRequest) -> None:
        acts.append(request.attempt)
        release.wait(20)

    record(store, act, "k")
    async with performing([act], store):
        await eventually(lambda: states(store) == {"k": "unknown"}, what="unknown")
        record(store, act, "later")  # the runner turns, and does not come back to the first
        await eventually(lambda: len(acts) == 2, what="the later one runs")
        assert not asked
        release.set()
        await eventually(lambda: states(store) == {"k": "done", "later": "done"}, what="both done")
    assert len(acts) == 2 and not asked


async def test_verify_decides_about_an_unknown_outcome(store: Store) -> None:
    """It cannot tell, it breaks, then it knows: the effect is done, and the act ran once."""
    answers: list[Any] = [Unknown("the provider is slow"), RuntimeError("down"), Done({"found": True})]
    acts: list[str] = []

    async def look_up(request: EffectRequest) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @effect("charge-card", verify=look_up, retry=QUICK, registry=Registry())
    def charge(request: EffectRequest) -> None:
        acts.append(request.key)
        raise TimeoutError

    record(store, charge, "k")
    async with performing([charge], store):
        await eventually(lambda: states(store) == {"k": "done"}, what="done")
    assert acts == ["k"] and answers == []


async def test_verify_that_finds_nothing_has_it_performed_again(store: Store) -> None:
    """``NotDone`` from ``verify``: the act runs a second time, with the same idempotency key."""
    seen: list[UUID] = []

    @effect("charge-card", verify=lambda request: NotDone("no such charge"), retry=QUICK, registry=Registry())
    def charge(request: EffectRequest) -> None:
        seen.append(request.idempotency_key)
        if request.attempt == 1:
            raise ConnectionResetError

    record(store, charge, "k")
    async with performing([charge], store):
        await eventually(lambda: states(store) == {"k": "done"}, what="done")
    assert len(seen) == 2 and len(set(seen)) == 1


async def test_idempotent_acts_are_sent_again_and_not_for_ever(store: Store) -> None:
    """``idempotent=True``: the same key again, up to the attempts of the backoff; then a person decides."""
    calls: list[int] = []

    @effect("act", retry=QUICK, idempotent=True, registry=Registry())
    def act(request: EffectRequest) -> None:
        calls.append(request.attempt)
        if request.key == "bad" or request.attempt == 1:
            raise ConnectionResetError

    record(store, act, "good")
    record(store, act, "bad")
    async with performing([act], store):
        await eventually(lambda: states(store)["good"] == "done" and attempts(store)["bad"] == 3, what="three tries")
        record(store, act, "after")
        await eventually(lambda: states(store)["after"] == "done", what="the runner has turned since")
    assert states(store)["bad"] == "unknown" and attempts(store) == {"good": 2, "bad": 3, "after": 2}


async def test_an_operator_resolves_what_nobody_knows(store: Store) -> None:
    """Done, or not done and performed again; each with its audit row, in the same transaction. Refused for what is
    not unknown, and without a reason."""
    works = False

    @effect("act", registry=Registry())
    def act(request: EffectRequest) -> None:
        if not works:
            raise ConnectionResetError

    for key in ("a", "b"):
        record(store, act, key)
    async with performing([act], store):
        await eventually(lambda: set(states(store).values()) == {"unknown"}, what="both unknown")
        works = True
        database = database_for(store.settings)
        try:
            ids = {line.key: line.effect_id for line in await ops.listed(database, state="unknown", limit=10)}
            with pytest.raises(UsageError, match="say why"):
                await ops.resolve(database, ids["a"], "done", why=" ", actor="ann")
            assert (await ops.resolve(database, ids["a"], "done", why="seen in the bank", actor="ann")).state == "done"
            await ops.resolve(database, ids["b"], "not-done", why="not in the bank", actor="ann")
            await eventually(lambda: states(store) == {"a": "done", "b": "done"}, what="the second act ran")
            with pytest.raises(RefusedError, match=r"is done: only one that is unknown or failed"):
                await ops.resolve(database, ids["b"], "done", why="again", actor="ann")
            with pytest.raises(RefusedError, match="no effect 999"):
                await ops.show(database, 999)
        finally:
            await database.aclose()
    audit = store.query("select actor, action, reason, count from relevo_audit order by audit_id")
    assert audit == [("ann", "effects.done", "seen in the bank", 1), ("ann", "effects.not-done", "not in the bank", 1)]
    assert attempts(store) == {"a": 1, "b": 2}


async def test_a_process_that_stood_still_does_not_act(store: Store) -> None:
    """The clock, looked at between the commit of *sent* and the act, says that the lease is over: no act, and the
    effect is free for others at once, its attempt not counted."""
    acts: list[str] = []
    ticks = iter([0.0, 1000.0])

    @effect("act", registry=Registry())
    def act(request: EffectRequest) -> None:
        acts.append(request.key)

    record(store, act, "k")
    hours = lambda: next(ticks, 2000.0)  # noqa: E731 - the claim at 0, the look before the act at 1000
    async with performing([act], store, clock=hours):
        await eventually(lambda: acts == ["k"], what="the next claim acts")
        await eventually(lambda: states(store) == {"k": "done"}, what="done")
    assert attempts(store) == {"k": 1}


async def test_two_runners_share_the_work(store: Store) -> None:
    """Forty effects, two runners: each is performed once."""
    done: list[str] = []

    @effect("act", registry=Registry())
    async def act(request: EffectRequest) -> None:
        done.append(request.key)

    for number in range(40):
        record(store, act, number)
    async with performing([act], store), performing([act], store):
        await eventually(lambda: set(states(store).values()) == {"done"}, what="all done")
    assert sorted(done, key=int) == [str(number) for number in range(40)]


async def test_what_cannot_be_recorded_is_refused(store: Store) -> None:
    """Autocommit, a key or data that cannot be stored, a name that is none: refused before anything is written."""
    with contextlib.closing(store.connect()) as connection:
        with pytest.raises(RefusedError, match="key"):
            once(connection, "act", key="")
        with pytest.raises(RefusedError, match="data"):
            once(connection, "act", key=1, data=object())
        with pytest.raises(RefusedError, match="NUL"):
            once(connection, "act", key=1, data="a\x00b")
        with pytest.raises(RefusedError):
            once(connection, "a name", key=1)
    auto = store.connect()
    with contextlib.closing(auto):
        if store.is_postgres:
            auto.autocommit = True
        else:
            auto.isolation_level = None
        with pytest.raises(NotInTransactionError):
            once(auto, "act", key=1)


async def test_a_forgotten_await_makes_the_commit_fail(pg_store: Store) -> None:
    """An async session that commits with an un-awaited recording raises, as with the outbox."""
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    from relevo.outbox.pending import forget

    engine = create_async_engine(pg_store.url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        async with AsyncSession(engine) as session:
            async with session.begin():
                assert await once(session, "act", key=1) is True
                assert await once(session, "act", key=1) is False
            await session.begin()
            forgotten = once(session, "act", key=2)
            with pytest.raises(ForgottenAwaitError):
                await session.commit()
            forget([forgotten.site])  # type: ignore[attr-defined]
            forgotten.site.awaited = True  # type: ignore[attr-defined]
            await session.rollback()
    finally:
        await engine.dispose()
    assert states(pg_store) == {"1": "pending"}


def test_an_effect_is_declared_once() -> None:
    """A second function under the name is refused, and so is a name or a time-out that cannot be."""
    registry = Registry()

    @effect("act", registry=registry)
    def first(request: EffectRequest) -> None: ...

    with pytest.raises(ConfigError, match="declared twice"):

        @effect("act", registry=registry)
        def second(request: EffectRequest) -> None: ...

    with pytest.raises(ConfigError):
        effect("an act", registry=registry)(first)
    with pytest.raises(ConfigError):
        effect("other", timeout_s=0, registry=registry)(first)


async def test_the_database_away_after_the_act(tmp_path: Any) -> None:
    """The act is done, its result cannot be written for a while: it is written later, and the act is not repeated."""
    from relevo.effects.performer import Performer
    from relevo.effects.recorder import Recorder
    from relevo.errors import UnreachableError
    from relevo.ids import uuid7
    from relevo.storage import effecting

    store = sqlite_store(tmp_path / "app.db")
    acts: list[str] = []

    @effect("act", registry=Registry())
    async def act(request: EffectRequest) -> None:
        acts.append(request.key)
        flaky.failures = 2

    class Flaky:
        failures = 0

        async def run(self, script: Any, **more: Any) -> Any:
            if self.failures:
                self.failures -= 1
                script.close()
                raise UnreachableError("away")
            return await inner.run(script, **more)

    inner = database_for(store.settings)
    flaky = Flaky()
    try:
        record(store, act, "k")
        (claim,) = await inner.run(effecting.claim("act", uuid7(), 5.0, 1, ask=False))
        await Performer(act, Recorder(flaky), lambda: 0.0).work(claim, 1.0)  # type: ignore[arg-type]
    finally:
        await inner.aclose()
    assert acts == ["k"] and states(store) == {"k": "done"} and flaky.failures == 0


async def test_another_process_performs_what_could_not_begin_here(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it cannot be written down that an act begins, the process is not ready. Then the effect is gone: nothing is
    left to begin, and the process is ready again."""
    from relevo.errors import UnreachableError
    from relevo.storage import effecting

    @effect("act", registry=Registry())
    async def act(request: EffectRequest) -> None: ...

    def sent(_: object) -> None:
        tries.append(len(tries))
        raise UnreachableError("away")

    tries: list[int] = []
    monkeypatch.setattr(effecting, "sent", sent)
    record(store, act, "k")
    async with performing([act], store) as runner:
        await eventually(lambda: "recording" in runner.health().problems, what="it is not ready")
        store.do("delete from relevo_effect")
        await eventually(lambda: runner.health().ready, what="it is ready")
    assert tries


async def test_an_act_that_cannot_begin_is_tried_again_at_growing_distances(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relevo.effects.recorder import TELL
    from relevo.errors import UnreachableError
    from relevo.storage import effecting

    @effect("act", registry=Registry())
    async def act(request: EffectRequest) -> None: ...

    def sent(_: object) -> None:
        tries.append(time.monotonic())
        raise UnreachableError("away")

    tries: list[float] = []
    monkeypatch.setattr(effecting, "sent", sent)
    record(store, act, "k")
    async with performing([act], store):
        await eventually(lambda: len(tries) >= 4, what="it was tried four times")
    least = [TELL.base.total_seconds() * 2**step / 2 for step in range(3)]
    assert all(after - before >= wait_s for before, after, wait_s in zip(tries, tries[1:], least, strict=False))


async def test_status_counts_effects_and_names_the_unknown(store: Store) -> None:
    """By name and state; unknown ones are a problem with the command that lists them."""
    from relevo.ops.status import status

    for key in ("a", "b"):
        record(store, "charge-card", key)
    store.do("update relevo_effect set state = 'unknown' where key = 'a'")
    database = database_for(store.settings)
    try:
        report = await status(database, consumer_settings(store))
    finally:
        await database.aclose()
    assert [(each.name, each.state, each.count) for each in report.effects] == [
        ("charge-card", "pending", 1),
        ("charge-card", "unknown", 1),
    ]
    assert any("relevo effects list --state unknown" in warning for warning in report.warnings)

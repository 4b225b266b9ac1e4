"""Acts of effects, and ``verify`` functions, that raise, return and do what no act should: the *effect* way of the
suite of hostile handlers.

Right is: the effect is done exactly if its act returned, else it has the state that its declaration asks for, with a
reason; other effects are performed; the runner lives, is healthy, and stops promptly.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from relevo.effects import EffectRequest, Registry, effect
from tests.support.effects import attempts, performing, record, states
from tests.support.hostile.acts import FORMS, QUICK, RETURNED, Acts, deeds, names
from tests.support.hostile.deeds import DEEDS, KEEP
from tests.support.relays import Store, postgres_store, sqlite_store
from tests.support.waiting import eventually

STOP_S = 10.0
OVER_S = 60.0
ALL = [(dialect, form, is_async) for dialect in ("postgres", "sqlite") for form in FORMS for is_async in (False, True)]
SHORT = {case for place, case in enumerate(ALL) if (place // 6 + place) % 2}
"""Every form, asynchronous and not; of the two databases one each."""
CASES = [
    pytest.param(
        *case,
        id=f"{case[0]}-{case[1]}-{'async' if case[2] else 'sync'}",
        marks=[] if case in SHORT else [pytest.mark.soak],
    )
    for case in ALL
]


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def make(dialect: str) -> Store:
        if dialect == "sqlite":
            return sqlite_store(tmp_path / "app.db")
        return postgres_store(request.getfixturevalue("pg_database"))

    return make


def rows_of(store: Store, columns: str) -> list[Any]:
    return store.query(f"select key, {columns} from relevo_effect where name = 'hostile' order by effect_id")


@pytest.mark.xdist_group("hostile acts")
@pytest.mark.parametrize(("dialect", "form", "is_async"), CASES)
async def test_a_hostile_act_harms_only_its_own_effect(
    dialect: str, form: str, is_async: bool, make_store: Any
) -> None:
    """Row: C1, C2, C3 of the findings, for effects."""
    store: Store = make_store(dialect)
    acts = Acts(form, is_async, store)
    hostile, ordinary = acts.effects()
    for name in names(is_async):
        record(store, hostile, name)
    try:
        async with performing([hostile, ordinary], store, at_once=16) as runner:
            await eventually(
                lambda: acts.over({key: tuple(row) for key, *row in rows_of(store, "state, attempts, asked")}),
                what=lambda: f"every hostile effect is settled: {rows_of(store, 'state, attempts, asked')}",
                timeout_s=OVER_S,
                every_s=0.05,
            )
            record(store, ordinary, "last")
            await eventually(lambda: states(store)["last"] == "done", what="others are performed", timeout_s=20)
            await eventually(lambda: runner.health().ready, what="it is ready", timeout_s=10)
            assert runner.health().live
            stopped = time.monotonic()
        assert time.monotonic() - stopped < STOP_S
    finally:
        for task in (left := list(KEEP)):
            task.cancel()
        KEEP.clear()
        await asyncio.gather(*left, return_exceptions=True)
    assert "\n".join(acts.faults(rows_of(store, "state, attempts, error_type, error"))) == ""


def test_every_deed_without_a_transaction_is_an_act() -> None:
    for is_async in (False, True):
        missing = {name for name, deed in DEEDS.items() if not deed.needs} - set(deeds(is_async))
        assert missing == {"returns a coroutine"}, "an act's coroutine is run"


@pytest.mark.parametrize("name", sorted(RETURNED))
def test_what_an_act_returns_can_be_written_down(name: str) -> None:
    from relevo.effects.performer import RESULT_BYTES_MAX, _json

    text = _json(RETURNED[name]())
    assert len(text) <= RESULT_BYTES_MAX
    text.encode()


async def test_an_act_that_does_not_let_itself_be_cancelled_is_not_repeated_beside_itself(store: Store) -> None:
    """Its own word counts in the end, as that of a thread; meanwhile it is unknown, and nothing acts again."""
    release, acts = asyncio.Event(), []

    @effect("act", timeout_s=0.05, idempotent=True, retry=QUICK, registry=Registry())
    async def act(request: EffectRequest) -> str:
        acts.append(request.attempt)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "well"

    @effect("other", registry=Registry())
    def other(request: EffectRequest) -> None: ...

    record(store, act, "k")
    async with performing([act, other], store, at_once=1, grace_s=0.4) as runner:
        await eventually(lambda: states(store) == {"k": "unknown"}, what="unknown")
        record(store, other, "o")
        await eventually(lambda: states(store)["o"] == "done", what="others are performed")
        turns = runner.pulse
        assert turns is not None
        await asyncio.sleep(0.6)  # longer than its lease: another runner, or this one, would have claimed it
        assert acts == [1]
        release.set()
        await eventually(lambda: states(store)["k"] == "done", what="its own word")
    assert acts == [1]
    assert attempts(store)["k"] == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_stop_does_not_wait_for_an_act_without_end(store: Store, is_async: bool) -> None:
    over, free = threading.Event(), asyncio.Event()

    async def hang(request: EffectRequest) -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    hanging = hang if is_async else (lambda request: over.wait(60) and None)
    act = effect("act", timeout_s=0.05, registry=Registry())(hanging)
    record(store, act, "k")
    try:
        async with performing([act], store):
            await eventually(lambda: states(store) == {"k": "unknown"}, what="unknown")
            stopped = time.monotonic()
        assert time.monotonic() - stopped < STOP_S
    finally:
        over.set()
        free.set()
    assert states(store) == {"k": "unknown"}


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_look_that_never_ends_is_left_behind_and_made_again(store: Store, is_async: bool) -> None:
    over, free, looks = threading.Event(), asyncio.Event(), []

    async def look(request: EffectRequest) -> None:
        looks.append(1)
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    def block(request: EffectRequest) -> None:
        looks.append(1)
        over.wait(60)

    @effect("act", timeout_s=0.05, verify=look if is_async else block, retry=QUICK, registry=Registry())
    def act(request: EffectRequest) -> None:
        raise ConnectionResetError

    record(store, act, "k")
    try:
        async with performing([act], store):
            await eventually(lambda: len(looks) > 1, what="a second look")
    finally:
        over.set()
        free.set()
    assert attempts(store) == {"k": 1}
    assert "verify" in store.query("select error from relevo_effect")[0][0]


async def test_no_room_for_a_thread_is_an_act_that_was_not_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[int] = []

    @effect("act", retry=QUICK, registry=Registry())
    def act(request: EffectRequest) -> None:
        acts.append(request.attempt)

    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "relevo-effect" and not refused:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    record(store, act, "k")
    async with performing([act], store):
        await eventually(lambda: states(store) == {"k": "done"}, what="done at the second attempt")
    assert (acts, refused) == ([2], [1])

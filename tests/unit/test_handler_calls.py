"""What handlers return and raise, and whose fault a lost database is: the parts, without a database."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relevo import Backoff, Consumer, Event, Reject, Retry
from relevo.consumer.losses import DatabaseLost, Losses
from relevo.decide import DELAY_MAX_S, Wait, decide
from relevo.effects import EffectRequest
from relevo.effects.declaring import Registry, effect
from relevo.errors import ConfigError, MisuseError
from relevo.ids import uuid7
from relevo.message import Message
from relevo.outcome import Conflict, Failed, RetryAsked, Unavailable
from relevo.policy import Policy
from relevo.runtime.calls import Raised, apart
from relevo.runtime.returned import refuse_deferred
from tests.support.events import OrderPlaced


async def test_a_coroutine_that_cancels_its_task_does_not_cancel_its_caller() -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    result = await apart(work())
    assert isinstance(result, Raised)
    assert isinstance(result.error, asyncio.CancelledError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopAsyncIteration])
async def test_what_would_end_the_loop_comes_back_as_a_value(kind: type[BaseException]) -> None:
    async def work() -> None:
        raise kind

    result = await apart(work())
    assert isinstance(result, Raised)
    assert type(result.error) is kind


async def test_a_cancellation_of_the_caller_reaches_the_coroutine_and_is_raised() -> None:
    ended = asyncio.Event()
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    task = asyncio.create_task(apart(work()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


class MyAwaitable:
    def __await__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    "result", [MyAwaitable(), map(str, [1]), (n for n in ())], ids=["awaitable", "map", "generator"]
)
def test_work_that_nothing_runs_is_refused(result: object) -> None:
    with pytest.raises(MisuseError, match="nothing runs"):
        refuse_deferred(result)


@pytest.mark.parametrize("collect", [list, tuple, set, frozenset, lambda works: dict(enumerate(works))])
def test_work_in_a_collection_is_refused_and_closed(collect: Callable[[list[object]], object]) -> None:
    async def send() -> None: ...

    works = [send(), send()]
    with pytest.raises(MisuseError, match="coroutine, which nothing runs"):
        refuse_deferred(collect([None, *works]))
    assert [inspect.getcoroutinestate(work) for work in works] == [inspect.CORO_CLOSED] * 2


@pytest.mark.parametrize("result", [1, "text", [], [1, "text"], {"a": {"b": 1}}, object(), iter([1]), Exception()])
def test_anything_else_may_be_returned(result: object) -> None:
    refuse_deferred(result)


def test_a_plain_function_declared_to_return_a_coroutine_is_refused() -> None:
    def handle(event: Event[OrderPlaced]) -> Coroutine[Any, Any, None]: ...

    with pytest.raises(ConfigError, match="nothing would run"):
        Consumer("billing", ["shop.order"]).on(OrderPlaced)(handle)


def test_a_generator_is_no_effect() -> None:
    def charge(request: EffectRequest) -> Any:
        yield request

    with pytest.raises(ConfigError, match="generator"):
        effect("charge", registry=Registry())(charge)


class Witness:
    def __init__(self, answers: bool = True, writes: bool = False) -> None:
        self.commits = 0
        self._writes = writes
        self.reasons: list[str] = []
        self._answers = answers

    async def answers(self) -> bool:
        return self._answers

    async def writes(self) -> bool:
        return self._writes

    def down(self, reason: str) -> None:
        self.reasons.append(reason)


LOST = DatabaseLost("psycopg.errors.AdminShutdown", "terminated")


async def test_a_connection_lost_while_the_database_answers_is_the_message_s_from_the_second_time_on() -> None:
    """Once, with however many attempts, it may be a server that was started again."""
    losses, witness = Losses(), Witness()
    assert isinstance(await losses.weigh(LOST, witness), Conflict)
    assert isinstance(await losses.weigh(LOST, witness), Failed)
    assert isinstance(await losses.weigh(LOST, witness), Failed)
    assert witness.reasons == []


async def test_a_database_that_went_away_is_an_outage_once_and_the_message_s_the_second_time() -> None:
    losses, witness = Losses(), Witness(answers=False)
    assert isinstance(await losses.weigh(LOST, witness), Unavailable)
    assert isinstance(await losses.weigh(LOST, witness), Failed)
    assert len(witness.reasons) == 2


async def test_a_full_disk_is_waited_for_until_others_commit() -> None:
    losses, witness = Losses(), Witness()
    full = DatabaseLost("DiskFull", "no space", scarce=True)
    for _ in range(3):
        assert isinstance(await losses.weigh(full, witness), Unavailable)
    witness.commits += 1
    assert isinstance(await losses.weigh(full, witness), Failed)


async def test_a_disk_that_is_full_for_one_message_alone_is_its_own_failure_from_the_second_time_on() -> None:
    losses, witness = Losses(), Witness(writes=True)
    full = DatabaseLost("DiskFull", "no space", scarce=True)
    assert isinstance(await losses.weigh(full, witness), Unavailable)
    for _ in range(2):
        assert isinstance(await losses.weigh(full, witness), Failed)


def test_delays_are_ones_that_every_database_holds() -> None:
    assert decide(RetryAsked(timedelta.max, "later"), 1, Policy()) == Wait(DELAY_MAX_S, "later")
    steep = Backoff(base=timedelta(seconds=1), factor=1e300, cap=timedelta(hours=1), jitter=False)
    assert steep.delay_s(9) == 3600.0


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), "1", b"1", None, object()])
def test_a_time_that_is_none_is_refused(after: Any) -> None:
    with pytest.raises(ConfigError, match="takes a timedelta"):
        Retry(after)


def test_any_reason_has_a_text() -> None:
    assert str(Reject(KeyError("price"))) == "KeyError: 'price'"
    assert str(Reject(404)) == "404"
    assert str(Retry(1, None)) == "None"


def test_headers_of_an_event_cannot_be_changed_and_are_a_dict() -> None:
    """The message keeps its own."""
    message = Message(
        event_id=uuid7(), type="a.b", topic="a", payload=b"{}", created_at=datetime.now(UTC), headers={"tenant": "a"}
    )
    event = Event.of(message, None, attempt=1, consumer="billing")
    headers: Any = event.headers
    for change in (
        lambda: headers.update(tenant="b"),
        lambda: headers.__setitem__("tenant", "b"),
        lambda: headers.pop("tenant"),
        lambda: headers.clear(),
        lambda: headers.setdefault("x", "y"),
        lambda: headers.__ior__({"x": "y"}),
    ):
        with pytest.raises(TypeError, match=r"dict\(event.headers\)"):
            change()
    dict.__setitem__(headers, "tenant", "b")
    assert message.headers == {"tenant": "a"}
    fresh = Event.of(message, None, attempt=1, consumer="billing").headers
    assert fresh == {"tenant": "a"}
    assert json.dumps(fresh) == '{"tenant": "a"}'
    assert pickle.loads(pickle.dumps(fresh)) == fresh == copy.deepcopy(fresh)

"""Who must wait behind a refused message."""

from __future__ import annotations

import asyncio

from relevo.brokers.refusals import Refusals

KEY, OTHER = ("t", b"k"), ("t", b"o")


def test_calls_that_began_before_the_caller_knew_are_closed() -> None:
    """The refusal of call 1 closes its key for call 2, which began before 1 ended, and not for call 3."""
    refusals = Refusals()
    one, two = refusals.begin(), refusals.begin()
    refusals.refuse(one, KEY)
    assert refusals.closed(one, KEY)
    assert refusals.closed(two, KEY)
    assert not refusals.closed(two, OTHER)
    refusals.end(one)
    three = refusals.begin()
    assert refusals.closed(two, KEY)
    assert not refusals.closed(three, KEY)


def test_a_message_turned_away_closes_its_key_in_turn() -> None:
    """Call 3 began before call 2 had told that it turned the key away."""
    refusals = Refusals()
    one, two = refusals.begin(), refusals.begin()
    refusals.refuse(one, KEY)
    refusals.end(one)
    three = refusals.begin()
    refusals.refuse(two, KEY)
    assert refusals.closed(three, KEY)
    refusals.end(two)
    assert refusals.closed(three, KEY)
    assert not refusals.closed(refusals.begin(), KEY)


def test_nothing_is_remembered_when_all_calls_ended() -> None:
    refusals = Refusals()
    calls = [refusals.begin() for _ in range(3)]
    refusals.refuse(calls[1], KEY)
    assert refusals.some
    for call in calls:
        refusals.end(call)
    assert not refusals.some


async def test_a_call_ends_in_the_step_in_which_its_caller_is_told() -> None:
    """Between the end of the work and its caller's next step others run: a call that begins there does not know yet."""
    refusals = Refusals()
    call = refusals.begin()
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(refusals.told(call, work))
    await asyncio.sleep(0)
    refusals.refuse(call, ("t", b"k"))
    began_before: list[bool] = []

    def begin(_: object) -> None:
        if not caller.done():
            began_before.append(refusals.closed(refusals.begin(), ("t", b"k")))

    work.add_done_callback(begin)
    work.set_result(None)
    await caller
    assert began_before == [True]
    assert not refusals.closed(refusals.begin(), ("t", b"k"))


async def test_the_work_of_a_cancelled_caller_still_closes_its_keys() -> None:
    refusals = Refusals()
    call = refusals.begin()
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(refusals.told(call, work))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    refusals.refuse(call, ("t", b"k"))
    assert refusals.closed(refusals.begin(), ("t", b"k"))
    work.set_result(None)
    await asyncio.sleep(0)
    assert not refusals.closed(refusals.begin(), ("t", b"k"))

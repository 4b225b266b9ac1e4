"""Wake-ups inside one process."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from relevo import signals


async def test_a_signal_before_the_wait_is_not_lost() -> None:
    """Coalesced: any number of signals is one wake-up."""
    with signals.subscribe("test-before") as wakeup:
        for _ in range(5):
            signals.notify("test-before")
        assert await wakeup.wait(0)
        assert not await wakeup.wait(0)


async def test_a_signal_from_a_thread_ends_the_wait() -> None:
    """Across threads, within the wait."""
    with signals.subscribe("test-thread") as wakeup:
        waiting = asyncio.create_task(wakeup.wait(30))
        await asyncio.sleep(0)
        thread = threading.Thread(target=signals.notify, args=("test-thread",))
        thread.start()
        assert await waiting
        thread.join()


async def test_every_listener_of_its_channel() -> None:
    """Two listeners hear it, one on another channel does not, a closed one is gone."""
    with signals.subscribe("test-a") as one, signals.subscribe("test-a") as two, signals.subscribe("test-b") as other:
        signals.notify("test-a")
        assert [await one.wait(0), await two.wait(0), await other.wait(0)] == [True, True, False]
        two.close()
        two.close()
        signals.notify("test-a")
        assert [one.is_set, two.is_set] == [True, False]
    assert "test-a" not in signals._listeners


async def test_a_cancelled_wait_leaves_the_signal() -> None:
    """Cancelled while the signal comes in: the next wait has it."""
    with signals.subscribe("test-cancel") as wakeup:
        waiting = asyncio.create_task(wakeup.wait(30))
        await asyncio.sleep(0)
        signals.notify("test-cancel")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await wakeup.wait(0)


def test_a_closed_loop_does_not_hurt_the_writer() -> None:
    """A listener whose loop is gone: `notify` goes on without it."""
    wakeup = signals.subscribe("test-closed")
    loop = asyncio.new_event_loop()
    task = loop.create_task(wakeup.wait(30))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    signals.notify("test-closed")
    assert wakeup.is_set
    wakeup.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()

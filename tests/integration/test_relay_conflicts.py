"""A relay whose transaction lost a deadlock, or was ended by the server since the process stood still, goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.clients.sqlstate import explain
from relevo.errors import UnreachableError
from tests.support.relays import FakePublisher, Store, running_relay
from tests.support.waiting import eventually


class Conflicted(Exception):
    """What a driver raises; only its code counts."""

    sqlstate = "40P01"


@pytest.mark.parametrize("method", ["settle_all", "take"])
async def test_a_deadlock_ends_no_relay(store: Store, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """An operator's step and a settlement may lock each other out; PostgreSQL picks one. The relay must try again, and
    everything goes out, in order."""
    async with running_relay(store) as relay:
        real = getattr(relay.engine.source, method)
        lost = []

        async def loses_once(*arguments: Any, **named: Any) -> Any:
            if not lost:
                lost.append(True)
                if method == "settle_all":  # as the real one does when its transaction fails
                    for page in arguments[0]:
                        await relay.engine.source.release(page)
                raise Conflicted
            return await real(*arguments, **named)

        monkeypatch.setattr(relay.engine.source, method, loses_once)
        store.fill(300, keys=3)
        await eventually(lambda: relay.task.done() or store.unsettled() == 0, what="all settled")
        assert lost and not relay.task.done()
        for key in range(3):
            sent = relay.publisher.payloads(b"k%d" % key)
            assert list(dict.fromkeys(sent)) == list(range(key, 300, 3))


async def test_a_deadlock_at_a_clean_stop_is_no_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last settlement loses: the relay ends as it was asked to, and the next one sends that page again."""
    publisher = FakePublisher(gate=asyncio.Event())
    async with running_relay(store, publisher) as relay:

        async def loses(pages: Any) -> Any:
            for page in pages:
                await relay.engine.source.release(page)
            raise Conflicted

        monkeypatch.setattr(relay.engine.source, "settle_all", loses)
        store.fill(30, keys=3)
        await eventually(lambda: publisher.calls > 0, what="a page is with the broker")
        relay.stop.set()
        assert publisher.gate is not None
        publisher.gate.set()
        await asyncio.wait_for(relay.task, 30)
    assert not relay.engine.flight
    async with running_relay(store, publisher):
        await eventually(lambda: store.unsettled() == 0, what="all settled")
    for key in range(3):
        assert list(dict.fromkeys(publisher.payloads(b"k%d" % key))) == list(range(key, 30, 3))


@pytest.mark.parametrize("sqlstate", ["25P03", "25P04"])
def test_a_session_that_the_server_ended_is_an_outage(sqlstate: str) -> None:
    """HARD 2: idle_in_transaction_session_timeout and transaction_timeout end the connection, not the process."""
    assert isinstance(explain(sqlstate, "terminating connection", "postgresql://x"), UnreachableError)

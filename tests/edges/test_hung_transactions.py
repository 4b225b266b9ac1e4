"""Relevo's own statements in handlers' transactions, on every kind of ``tx``, whose answer never comes.

Right is: noticed within a lease, the message is handled once, nothing is held, and a stop keeps its bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from relevo import Consumer, Event
from tests.edges.test_hung_statements import KINDS
from tests.support.consumers import insert
from tests.support.hung import scene
from tests.support.waiting import eventually
from tests.support.wal import WalStore, wal, wal_server  # noqa: F401 - fixtures

STEPS: dict[str, tuple[str, bytes]] = {
    "begin": ("hang_before", b"begin"),
    "inbox": ("hang_before", b"relevo_inbox"),
    "commit": ("hang_before", b"commit"),
    "committed": ("hang_after", b"commit"),
    "rollback": ("hang_before", b"rollback"),
}
"""Where the connection hangs, and whether what was sent still arrives."""
SHORT = {("psycopg", "rollback"), ("asyncpg", "commit"), ("session", "committed")}


def _matrix() -> Sequence[object]:
    rows = [(kind, step) for kind in KINDS for step in STEPS]
    assert set(rows) >= SHORT
    return [pytest.param(*row, marks=() if row in SHORT else pytest.mark.soak) for row in rows]


@pytest.mark.parametrize(("kind", "step"), _matrix())
async def test_a_statement_of_relevos_hangs(pg_database: str, tmp_path: Path, kind: str, step: str) -> None:
    failed: list[int] = []
    annotation, make_tx = KINDS[kind]
    names = {base.__name__ for base in annotation.__mro__}
    awaited = annotation.__module__.startswith("asyncpg") or any(name.startswith("Async") for name in names)

    def fail(number: int) -> None:
        if step == "rollback" and number not in failed:
            failed.append(number)
            raise ValueError("so that it is rolled back")

    def make(placed: Any, topic: str, via: str) -> Consumer:
        consumer = Consumer(f"c-{topic}", [topic], tx=make_tx(via))

        async def ahandle(event: Any, tx: Any) -> None:
            await insert(tx, event.data.order_id)
            fail(event.data.order_id)

        def handle(event: Any, tx: Any) -> None:
            insert(tx, event.data.order_id)
            fail(event.data.order_id)

        chosen: Any = ahandle if awaited else handle
        chosen.__annotations__ |= {"tx": annotation, "event": Event[placed]}
        consumer.on(placed)(chosen)
        return consumer

    async with scene(pg_database, tmp_path, broker="embedded", link="handler", make_consumer=make) as stage:
        proxy = stage.proxies["handler"]
        name, pattern = STEPS[step]
        setattr(proxy, name, pattern)
        stage.add(1)
        await asyncio.to_thread(proxy.caught)
        proxy.hang_before = proxy.hang_after = None
        await stage.handled("it is handled")
        stage.add(5)
        await stage.even()
        await eventually(lambda: stage.ready, what="it is ready again", timeout_s=60)


@pytest.mark.parametrize(
    "how", ["open ones", *(pytest.param(how, marks=pytest.mark.soak) for how in ("in a reply", "new ones too"))]
)
async def test_the_replication_stream_hangs(wal: WalStore, tmp_path: Path, how: str) -> None:  # noqa: F811
    """And the relay's other connections with it."""
    async with scene(wal.url, tmp_path, broker="embedded", link="relay database", source="wal", store=wal) as stage:
        stage.add(20)
        await stage.handled("before")
        proxy = stage.proxies["relay database"]
        if how == "in a reply":
            proxy.hang_in(11)
        else:
            proxy.new = "silent" if how == "new ones too" else "work"
            assert proxy.hang()
        stage.add(20)
        if how == "new ones too":
            await eventually(stage.look, what="it is not ready", timeout_s=40, every_s=0.05)
            proxy.new = "work"
        await stage.handled("after", timeout_s=90)
        await stage.even()
        await eventually(lambda: stage.ready, what="it is ready again", timeout_s=90)
        assert proxy.hung, "nothing was made to hang"

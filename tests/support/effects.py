"""An effect runner on a real database, and what tests look at afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from relevo.effects import Effect, EffectRunner, once
from relevo.settings import EffectsSettings, Settings
from tests.support.relays import Store


def settings_for(store: Store, **effects: Any) -> Settings:
    options: dict[str, Any] = {"grace_s": 2.0, "poll_s": 0.02} | effects
    return Settings(database=store.settings, effects=EffectsSettings(**options))


def record(store: Store, effect: Effect | str, key: Any, data: Any = None) -> bool:
    """One effect, in a committed transaction of its own."""
    with contextlib.closing(store.connect()) as connection:
        if not store.is_postgres:
            connection.execute("begin immediate")
        new = once(connection, effect, key=key, data=data)
        connection.commit()
    return bool(new)


def states(store: Store) -> dict[str, str]:
    """State by key."""
    return dict(store.query("select key, state from relevo_effect order by effect_id"))  # type: ignore[arg-type]


def attempts(store: Store) -> dict[str, int]:
    return dict(store.query("select key, attempts from relevo_effect order by effect_id"))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def performing(effects: Iterable[Effect], store: Store, **more: Any) -> AsyncIterator[EffectRunner]:
    """A runner until the block ends; then a clean stop, which must succeed."""
    clock = {"clock": more.pop("clock")} if "clock" in more else {}
    runner = EffectRunner(effects, settings_for(store, **more), **clock)
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(stop))
    try:
        yield runner
    finally:
        stop.set()
        await task

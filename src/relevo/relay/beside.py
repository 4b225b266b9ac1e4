"""What runs beside a relay's engine, each as a chore of its own."""

from __future__ import annotations

import asyncio

from relevo.relay.chores import Chore
from relevo.relay.engine import RelayEngine
from relevo.relay.maintenance import Maintenance
from relevo.relay.mover import Mover
from relevo.runtime.vitals import Vital
from relevo.settings import RelaySettings, Settings
from relevo.storage import pausing


def beside(engine: RelayEngine, settings: Settings, name: str, over: asyncio.Event) -> list[Chore]:
    """The chores of ``engine``, of the relay ``name``. ``over`` is set when the source was moved."""
    lease_s, relay_id = settings.relay.lease_s, engine.ownership.relay_id
    care = Maintenance(engine.database, relay_id, settings, lease_s, engine.clock, name)
    mover = Mover(engine.database, relay_id, lease_s, engine.wake.set, engine.clock)

    async def look_at_pauses() -> float:
        engine.take_pauses(await engine.database.run(pausing.load(), read_only=True))
        return pausing.LOOK_S

    turns = {"looking at pauses": look_at_pauses, "moving scheduled messages": mover.turn, "purging": care.turn}
    return [
        lease_of(engine, over),
        *(Chore(name, turn, engine.pulse, clock=engine.clock) for name, turn in turns.items()),
    ]


def lease_of(engine: RelayEngine, over: asyncio.Event) -> Chore:
    """Keeps the leases: three turns per lease, more while lanes are on the move."""
    ownership = engine.ownership

    async def turn() -> float:
        version = ownership.version
        try:
            await ownership.tick()
        finally:
            if ownership.moved:
                over.set()
            if ownership.version != version:
                engine.wake.set()
        return next_s()

    def next_s() -> float:
        return ownership.lease_s / 3 if ownership.complete else min(ownership.lease_s / 3, 0.2)

    return Chore("keeping the lease", turn, engine.pulse, first_s=next_s(), urgent=True, clock=engine.clock)


def vitals_of(settings: RelaySettings) -> list[Vital]:
    """What a relay has to succeed in. A page that is with the broker ends after ``send_timeout_s`` at the latest, and
    may be waited for before the next look at the outbox."""
    lease_s, send_s = settings.lease_s, settings.send_timeout_s
    return [
        Vital("renewal", "keeping the lease", lease_s),
        Vital("poll", "take", lease_s + 2 * send_s + 2 * settings.poll_max_s),
        Vital("publish", "publish", 2 * send_s),
        Vital("settle", "settle", lease_s),
    ]


async def follow(stop: asyncio.Event, over: asyncio.Event) -> None:
    """Hand a stop on."""
    await stop.wait()
    over.set()

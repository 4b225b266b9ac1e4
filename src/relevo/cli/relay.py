"""``relevo relay``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import click

from relevo.cli.context import CliContext
from relevo.cli.worker import announce, log_options, settings_of
from relevo.relay.service import Relay
from relevo.runtime.health import HealthServer
from relevo.runtime.supervise import supervise
from relevo.settings import Settings, redact


@click.command("relay")
@log_options
@click.pass_obj
def command(context: CliContext, log_level: str | None, log_format: str | None) -> None:
    """Move messages from the outbox to the broker until SIGTERM. Any number of relays share the lanes.

    The first signal finishes what is in flight and gives the lanes back; the second leaves at once.
    """
    settings = settings_of(context, log_level, log_format)
    asyncio.run(supervise(lambda stop: _relay(settings, stop), stop_timeout_s=settings.relay.stop_timeout_s))


async def _relay(settings: Settings, stop: asyncio.Event) -> None:
    relay = Relay(settings)
    async with AsyncExitStack() as stack:
        if settings.health.port:
            await stack.enter_async_context(HealthServer(settings.health.host, settings.health.port, relay.health))
        await relay.run(stop, lambda: announce(_ready(settings)))


def _ready(settings: Settings) -> str:
    health = f", health on {settings.health.host}:{settings.health.port}" if settings.health.port else ""
    return f"relay ready: {redact(settings.database.url)} -> {redact(settings.broker.url)}{health}"

"""``relevo consume``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import click

from relevo.cli.context import CliContext
from relevo.cli.worker import announce, log_options, settings_of
from relevo.consumer import Consumer, ConsumerRunner
from relevo.effects import EFFECTS
from relevo.ops.importing import import_all
from relevo.runtime.health import HealthServer
from relevo.runtime.supervise import supervise
from relevo.settings import Settings, redact
from relevo.telemetry import logs


@click.command("consume")
@click.argument("consumers", nargs=-1, required=True, metavar="MODULE:ATTRIBUTE...")
@log_options
@click.pass_obj
def command(context: CliContext, consumers: tuple[str, ...], log_level: str | None, log_format: str | None) -> None:
    """Run consumers until SIGTERM: relevo consume shop.consumers:billing

    Modules are looked up in the working directory first; effects that they declare are performed too. The first signal
    finishes the handlers that run and settles; the second leaves at once, and what was in flight is delivered again.
    """
    settings = settings_of(context, log_level, log_format)
    with logs.application():
        found = import_all(consumers, Consumer)
    asyncio.run(
        supervise(lambda stop: _consume(found, settings, stop), stop_timeout_s=settings.consumer.stop_timeout_s)
    )


async def _consume(consumers: list[Consumer], settings: Settings, stop: asyncio.Event) -> None:
    runner = ConsumerRunner(consumers, settings, effects=EFFECTS)
    async with AsyncExitStack() as stack:
        if settings.health.port:
            await stack.enter_async_context(HealthServer(settings.health.host, settings.health.port, runner.health))
        await runner.run(stop, lambda: announce(_ready(consumers, settings)))


def _ready(consumers: list[Consumer], settings: Settings) -> str:
    names = ", ".join(consumer.name for consumer in consumers)
    health = f", health on {settings.health.host}:{settings.health.port}" if settings.health.port else ""
    return f"consumers ready: {names} <- {redact(settings.broker.url)}{health}"

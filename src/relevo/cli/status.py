"""``relevo status``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Literal

import click

from relevo.cli.context import CliContext
from relevo.cli.database import on_database
from relevo.cli.output import document, line, output_option, show
from relevo.clients import database_for
from relevo.errors import UnreachableError
from relevo.ops.status import status
from relevo.ops.status_report import Status
from relevo.printable import printable
from relevo.settings import Settings

REFRESH_S = 1.0


@click.command("status")
@click.option("--watch", is_flag=True, help="Show it again every second until interrupted.")
@output_option
@click.pass_obj
def command(context: CliContext, watch: bool, output: Literal["table", "json", "jsonl"]) -> None:
    """What is pending and since when, lanes and their owners, what is paused or held, and what to look at."""
    settings = context.settings()
    if watch:
        asyncio.run(_watch(settings, output))
    else:
        _show(on_database(settings, lambda database: status(database, settings)), output)


async def _watch(settings: Settings, output: Literal["table", "json", "jsonl"]) -> None:
    if output != "table":
        async for each in _every_second(settings):
            if isinstance(each, Status):
                document(each, output)
            else:
                line(f"relevo: {each}", err=True)
        return
    from rich.live import Live
    from rich.text import Text

    from relevo.cli.status_table import render

    with Live(auto_refresh=False, screen=False) as live:
        async for each in _every_second(settings):
            live.update(render(each) if isinstance(each, Status) else Text(printable(str(each))), refresh=True)


async def _every_second(settings: Settings) -> AsyncIterator[Status | UnreachableError]:
    """A status per second; an outage is an item too, since whoever watches wants to see it end."""
    async with aclosing(database_for(settings.database, connections_max=1)) as database:
        while True:
            try:
                yield await status(database, settings)
            except UnreachableError as error:
                yield error
            await asyncio.sleep(REFRESH_S)


def _show(report: Status, output: Literal["table", "json", "jsonl"]) -> None:
    if output != "table":
        document(report, output)
        return
    from relevo.cli.status_table import render

    show(render(report))

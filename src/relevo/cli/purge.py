"""``relevo purge``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.output import document, output_option
from relevo.clients import database_for
from relevo.ops import purge as purging
from relevo.ops.acting import actor_of
from relevo.ops.purge import PARTS, Part
from relevo.ops.purge_report import PurgeReport
from relevo.relay.purging import Purged
from relevo.settings import Settings


@click.command("purge")
@click.option("--outbox", is_flag=True, help="Settled messages older than retention.outbox_days.")
@click.option("--inbox", is_flag=True, help="Inbox rows older than consumer.inbox_window_s.")
@click.option("--journal", is_flag=True, help="What consumer processes that died left behind.")
@click.option("--dry-run", is_flag=True, help="Change nothing; count exactly what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--actor", help="Who does it; your user and host if not given.")
@output_option
@click.pass_obj
def command(
    context: CliContext,
    outbox: bool,
    inbox: bool,
    journal: bool,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    output: Literal["table", "json", "jsonl"],
) -> None:
    """Delete or archive what is old, as the relays do by themselves (retention.every_s): all of it, or the parts named.

    In small batches. What is unsettled, held, or needed by a replay stays, however old it is.
    """
    settings = context.settings()
    chosen = {"outbox": outbox, "inbox": inbox, "journal": journal}
    parts: Sequence[Part] = [part for part in PARTS if chosen[part]] or PARTS
    if dry_run or not yes:
        found = asyncio.run(_count(settings, parts))
        if dry_run:
            _show(found, settings, output, dry_run=True)
            return
        if not found.total:
            progress("nothing is old enough")
            return
        verb = "Archive" if settings.retention.then == "archive" else "Delete"
        click.confirm(f"{verb} {found.outbox:,} messages, delete {found.inbox:,} inbox rows?", abort=True, err=True)
    _show(asyncio.run(_purge(settings, parts, actor or actor_of())), settings, output, dry_run=False)


def _show(done: Purged, settings: Settings, output: Literal["table", "json", "jsonl"], *, dry_run: bool) -> None:
    if output != "table":
        document(
            PurgeReport(
                dry_run=dry_run,
                outbox=done.outbox,
                inbox=done.inbox,
                journal=done.journal,
                then=settings.retention.then,
            ),
            output,
        )
        return
    would = "would be " if dry_run else ""
    verb = "archived" if settings.retention.then == "archive" else "deleted"
    click.echo(f"outbox   {done.outbox:,} {would}{verb}")
    click.echo(f"inbox    {done.inbox:,} {would}deleted")
    if not dry_run:
        click.echo(f"journal  {done.journal:,} deleted")


async def _count(settings: Settings, parts: Sequence[Part]) -> Purged:
    database = database_for(settings.database, connections_max=1)
    try:
        return await purging.count(database, settings, parts)
    finally:
        await database.aclose()


async def _purge(settings: Settings, parts: Sequence[Part], actor: str) -> Purged:
    said = 0

    def report(done: Purged) -> None:
        nonlocal said
        if done.total >= said + 50_000:
            said = done.total
            progress(f"{done.outbox:,} messages, {done.inbox:,} inbox rows")

    database = database_for(settings.database, connections_max=1)
    try:
        return await purging.purge(database, settings, parts, actor=actor, report=report)
    finally:
        await database.aclose()

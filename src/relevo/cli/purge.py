"""``relevo purge``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.cli.output import confirm, document, echo, output_option
from relevo.ops import purge as purging
from relevo.ops.acting import actor_of
from relevo.ops.purge import PARTS, Part
from relevo.ops.purge_report import PartitionFate, PurgeReport
from relevo.relay.purging import Purged
from relevo.settings import Settings


@click.command("purge")
@click.option("--outbox", is_flag=True, help="Settled messages older than retention.outbox_days.")
@click.option(
    "--partitions", is_flag=True, help="The same, by whole partitions (PostgreSQL); closes one if it is time."
)
@click.option("--inbox", is_flag=True, help="Inbox rows older than consumer.inbox_window_s.")
@click.option("--journal", is_flag=True, help="What consumer processes that died left behind.")
@click.option("--effects", is_flag=True, help="Effects done longer than retention.effects_days ago.")
@click.option("--dry-run", is_flag=True, help="Change nothing; count exactly what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--actor", help="Who does it; your user and host if not given.")
@output_option
@click.pass_obj
def command(
    context: CliContext,
    outbox: bool,
    partitions: bool,
    inbox: bool,
    journal: bool,
    effects: bool,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    output: Literal["table", "json", "jsonl"],
) -> None:
    """Delete, archive or drop what is old, as the relays do by themselves (retention.every_s): all, or the parts named.

    In small batches. What is unsettled, held, or needed by a replay stays, however old it is.
    """
    settings = context.settings()
    named = {"outbox": outbox, "partitions": partitions, "inbox": inbox, "journal": journal, "effects": effects}
    parts = purging.chosen(settings, [part for part in PARTS if named[part]])
    then = "partitions" if "partitions" in parts else settings.retention.then
    if dry_run or not yes:
        found = on_database(settings, lambda database: purging.count(database, settings, parts))
        if dry_run:
            _show(found, then, output, dry_run=True)
            return
        if found.nothing:
            progress("nothing is old enough")
            return
        confirm(_question(found, then))
    _show(_purge(settings, parts, actor or actor_of()), then, output, dry_run=False)


def _question(found: Purged, then: str) -> str:
    """What will be done, by its counts."""
    verb = {"archive": "Archive", "partitions": "Drop partitions with"}.get(then, "Delete")
    more = f", delete {found.inbox:,} inbox rows" + (f" and {found.effects:,} done effects" if found.effects else "")
    return f"{verb} {found.outbox:,} messages{more}{', close a partition' if found.cut else ''}?"


def _show(done: Purged, then: str, output: Literal["table", "json", "jsonl"], *, dry_run: bool) -> None:
    if output != "table":
        document(
            PurgeReport(
                dry_run=dry_run,
                outbox=done.outbox,
                inbox=done.inbox,
                journal=done.journal,
                effects=done.effects,
                partitions=[PartitionFate(name=fate.name, rows=fate.rows, stays=fate.why) for fate in done.partitions],
                cut=done.cut,
                then=then,
            ),
            output,
        )
        return
    would = "would be " if dry_run else ""
    verb = {"archive": "archived", "partitions": "dropped"}.get(then, "deleted")
    echo(f"outbox   {done.outbox:,} {would}{verb}")
    for fate in done.partitions:
        fact = f"stays: it {fate.why}" if fate.why else f"{fate.rows:,} messages, {would}dropped"
        echo(f"         {fate.name}  {fact}")
    if done.cut:
        echo(f"         a partition {'would be' if dry_run else 'was'} closed, and a new one begun")
    echo(f"inbox    {done.inbox:,} {would}deleted")
    if not dry_run:
        echo(f"journal  {done.journal:,} deleted")
    echo(f"effects  {done.effects:,} {would}deleted")


def _purge(settings: Settings, parts: Sequence[Part], actor: str) -> Purged:
    said = 0

    def report(done: Purged) -> None:
        nonlocal said
        if done.total >= said + 50_000:
            said = done.total
            progress(f"{done.outbox:,} messages, {done.inbox:,} inbox rows")

    return on_database(settings, lambda database: purging.purge(database, settings, parts, actor=actor, report=report))

"""``relevo source``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.cli.output import confirm, echo
from relevo.clients import database_for
from relevo.ops import moving
from relevo.ops.acting import actor_of
from relevo.ops.moving import Moved
from relevo.ops.moving_plan import plan
from relevo.settings import Settings


@click.group("source")
def command() -> None:
    """How the outbox is read: move it between 'mark', 'log' and 'wal' while writers and relays work."""


@command.command("move")
@click.argument("target", type=click.Choice(["mark", "log", "wal"]))
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--actor", help="Who does it; your user and host if not given.")
@click.option("--reason", default="", help="Why, for the audit.")
@click.pass_obj
def move(context: CliContext, target: str, dry_run: bool, yes: bool, actor: str | None, reason: str) -> None:
    """Have the outbox read by TARGET from now on. Interrupted, run it again: it goes on.

    Relays need not be stopped, nor their settings changed before: they let go of their lanes for a moment and go on
    with the new source. Needs a role that owns the tables, as `relevo migrate` does.
    """
    settings = context.settings()
    found = on_database(settings, lambda database: plan(database, target))
    if not found.steps:
        progress(f"the source is {target!r} already: nothing to do")
        return
    for number, step in enumerate(found.steps, 1):
        echo(f"{number}. {step}", err=not dry_run)
    if dry_run:
        for name, lanes in found.relays.items():
            echo(f"   relay {name} owns {lanes} lanes")
        return
    if not yes:
        confirm(f"{'Go on' if found.begun else 'Move'}?")
    moved = asyncio.run(_move(settings, target, actor or actor_of(), reason))
    if moved is not None:
        progress(
            f"done: read by {target!r}; {moved.marked:,} markers set, no relay read for {moved.closed_s:.1f} s. Set "
            f"relay.source = {target!r} when you next change the settings"
        )


async def _move(settings: Settings, target: str, actor: str, reason: str) -> Moved | None:
    async with aclosing(database_for(settings.database, connections_max=2)) as database:
        return await moving.move(database, settings, target, actor=actor, reason=reason, report=progress)

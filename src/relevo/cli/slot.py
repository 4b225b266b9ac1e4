"""``relevo slot``."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.output import confirm, echo
from relevo.ops import slot as slots


@click.group("slot")
def command() -> None:
    """The replication slot of the source 'wal': list, create, check, recover, drop (PostgreSQL)."""


@command.command("list")
@click.pass_obj
def list_(context: CliContext) -> None:
    """Every slot of this server with the plugin pgoutput: who reads it, and how much WAL it keeps."""
    ours, found = slots.listing(context.settings())
    for each in found:
        reader = f"read by pid {each.active_pid}" if each.active_pid is not None else "nobody reads"
        behind = "?" if each.behind is None else f"{each.behind:,}"
        safe = "" if each.safe is None else f", {each.safe:,} bytes until it is lost"
        mark = "*" if each.name == ours else " "
        echo(f"{mark} {each.name}  {each.database}  {each.status}  {reader}, keeps {behind} bytes of WAL{safe}")
    if not any(each.name == ours for each in found):
        progress(f"the slot of this installation, {ours}, does not exist")


@command.command("create")
@click.pass_obj
def create(context: CliContext) -> None:
    """Make publication, slot and position, whichever is missing, as `relevo migrate` does for relay.source = 'wal'."""
    progress(str(slots.create(context.settings())))


@command.command("check")
@click.pass_obj
def check(context: CliContext) -> None:
    """Exit code 3, and what to do, if a relay could not read the slot where its position stands."""
    progress(str(slots.check(context.settings())))


@command.command("recover")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def recover(context: CliContext, yes: bool) -> None:
    """Make a slot anew that was dropped or lost, and send from the table what is not known to be settled."""
    settings = context.settings()
    if not yes:
        confirm("Drop the slot if it is there, and take over from the table?")
    progress(str(slots.recover(settings)))


@command.command("drop")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def drop(context: CliContext, yes: bool) -> None:
    """Drop slot, publication and position, so that the server keeps no WAL for us any more."""
    settings = context.settings()
    if not yes:
        confirm("Drop the slot? A relay with relay.source = 'wal' then stops")
    progress("dropped" if slots.drop(settings) else "there was no slot")

"""``relevo groups``."""

from __future__ import annotations

from typing import Literal

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.cli.output import confirm, document, output_option, show
from relevo.ops import groups as ops
from relevo.ops.acting import actor_of

Output = Literal["table", "json", "jsonl"]


@click.group("groups")
def command() -> None:
    """Consumers that read the outbox themselves, where there is no broker: list their groups, forget one."""


@command.command("list")
@output_option
@click.pass_obj
def list_(context: CliContext, output: Output) -> None:
    """Every group, how far behind it is, and whether a process of it lives. No message is purged before every group has
    read it."""
    found = on_database(context.settings(), ops.listed)
    if output == "json":
        document(found, output)
    elif output == "jsonl":
        for each in found:
            document(each, output)
    elif found:
        from relevo.cli.status_table import groups_table

        show(*groups_table(found))
    else:
        progress("no consumer has read this outbox itself: there are no groups")


@command.command("drop")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--actor", help="Who does it; your user and host if not given.")
@click.option("--reason", default="", help="Why, for the audit.")
@click.pass_obj
def drop(context: CliContext, name: str, yes: bool, actor: str | None, reason: str) -> None:
    """Forget the group NAME and how far it got: what it has not read is kept for it no more.

    For a consumer that is gone for good. A process that joins by that name again is a new group. Refused while one of
    its processes lives.
    """
    settings = context.settings()
    if not yes:
        confirm(f"Drop the group {name}, and what it has not read?")
    who = actor or actor_of()
    done = on_database(settings, lambda database: ops.drop(database, name, actor=who, reason=reason))
    more = "+" if done.behind_capped else ""
    progress(f"the group {name} is dropped: {done.behind:,}{more} messages are not kept for it any more")

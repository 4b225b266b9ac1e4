"""``relevo jobs``."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.cli.output import document, output_option, show, table
from relevo.ops import jobs as ops
from relevo.ops.acting import actor_of

Output = Literal["table", "json", "jsonl"]
STATES = ("running", "paused", "done", "cancelled", "failed")


@click.group("jobs")
def command() -> None:
    """Long acts of operators (redrive, discard, publish, replay): list them, end one for good."""


@command.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@output_option
@click.pass_obj
def list_(context: CliContext, state: str | None, limit: int, output: Output) -> None:
    """The newest jobs."""
    lines = on_database(context.settings(), lambda database: ops.listed(database, state=state, limit=limit))
    if output == "json":
        document(lines, output)
    elif output == "jsonl":
        for line in lines:
            document(line, output)
    else:
        _table(lines)


@command.command("cancel")
@click.argument("job_id", type=click.UUID, metavar="JOB")
@click.option("--why", "--reason", "why", default="", metavar="TEXT", help="Why; kept in the audit.")
@click.option("--as", "--actor", "actor", metavar="NAME", help="Who; your user and host if not given.")
@output_option
@click.pass_obj
def cancel(context: CliContext, job_id: UUID, why: str, actor: str | None, output: Output) -> None:
    """End a job for good: whoever works on it stops after what is under way, and nobody takes it up again.

    What it did so far stays done. Keys that a replay (mode again) held are live at once; those for which messages
    arrived meanwhile are named, and are live when a process of the consumer has worked those off.
    """
    who = actor or actor_of()
    done = on_database(context.settings(), lambda database: ops.cancel(database, job_id, actor=who, reason=why))
    if output != "table":
        document(done, output)
        return
    progress(f"job {done.job_id} ({done.kind}) is cancelled")
    if done.held_keys:
        more = f" and {len(done.held_keys) - 10} more" if len(done.held_keys) > 10 else ""
        progress(
            f"not live yet, since messages arrived meanwhile: {', '.join(done.held_keys[:10])}{more}. They are when a "
            f"process of consumer {done.consumer} has worked those off"
        )


def _table(lines: list[ops.JobLine]) -> None:
    if not lines:
        progress("no job was begun")
        return
    rows = []
    for line in lines:
        total = "" if line.total is None else f"{line.total:,}"
        began = line.started_at.isoformat(sep=" ", timespec="seconds")
        rows.append((line.job_id, line.kind, line.state, f"{line.done:,}", total, line.actor, line.reason, began))
    show(table(("job", "what", "state", "done", "of", "who", "why", "began"), rows))

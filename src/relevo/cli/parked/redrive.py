"""``relevo parked redrive``."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.parked.options import acting, confirm, counted, on_database, plural, selecting, told
from relevo.errors import CancelledJobError
from relevo.ops import parked
from relevo.ops.parked import Operator
from relevo.ports.database import Database
from relevo.storage.parking import Selection


@click.command("redrive")
@selecting
@click.option("--all", "everything", is_flag=True, help="Every parked key there is.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N keys a second.")
@acting
@click.pass_obj
def command(
    context: CliContext,
    selection: Selection,
    everything: bool,
    rate: float | None,
    operator: Operator,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let parked keys drain: in order, before anything later of them, which waits behind.

    A message that fails again parks its key again. Killed half-way and run again with the same selection, the job goes
    on where it stood.
    """
    parked.check_selection(selection, everything=everything)
    settings = context.settings()

    async def work(database: Database) -> None:
        found = await parked.count(database, selection)
        if dry_run or not found.keys:
            progress(f"would redrive {counted(found)}" if found.keys else "nothing parked is selected")
            return
        confirm(f"Redrive {counted(found)}?", yes=yes)
        done = await parked.redrive(database, selection, operator, rate=rate, report=told)
        resumed = f" (job {done.job_id} taken up again)" if done.resumed else ""
        progress(f"redriven: {counted(done)}{resumed}")
        if done.busy:
            progress(f"left alone: {plural(done.busy, 'key')}, being drained right now")
        if done.cancelled:
            raise CancelledJobError(f"job {done.job_id} was cancelled before it was through")

    on_database(settings, work)

"""``relevo parked discard``."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.parked.one import find
from relevo.cli.parked.options import acting, confirm, counted, on_database, plural, selecting, told
from relevo.errors import CancelledJobError
from relevo.ops import parked
from relevo.ops.parked import Operator
from relevo.ports.database import Database
from relevo.storage.parking import Selection, readable


@click.command("discard")
@selecting
@click.option("--all", "everything", is_flag=True, help="Every parked key there is.")
@acting
@click.pass_obj
def command(
    context: CliContext, selection: Selection, everything: bool, operator: Operator, dry_run: bool, yes: bool
) -> None:
    """Give messages up: with --id that one message, else everything that is held of the selected parked keys.

    On the consumer's side the inbox keeps a redelivery from bringing them back; on the relay's side the outbox keeps
    them with the outcome held. A key with messages left stays parked.
    """
    parked.check_selection(selection, everything=everything)
    settings = context.settings()

    async def one(database: Database) -> None:
        id, queued = await find(database, selection)
        what = f"message {queued.message.event_id} ({queued.message.type}) of key {readable(id.key)!r} of {id.topic}"
        if dry_run:
            progress(f"would discard 1 message: {what}")
            return
        confirm(f"Discard {what}?", yes=yes)
        done = await parked.drop_one(database, id, queued, operator, "discarded")
        progress(f"discarded {what}; {'its key is live' if done.live else 'its key stays held'}")

    async def many(database: Database) -> None:
        found = await parked.count(database, selection)
        if dry_run or not found.keys:
            progress(f"would discard {counted(found)}" if found.keys else "nothing parked is selected")
            return
        confirm(f"Discard {counted(found)} for good?", yes=yes)
        done = await parked.discard(database, selection, operator, report=told)
        progress(f"discarded: {counted(done)}")
        if done.busy:
            progress(f"left alone: {plural(done.busy, 'key')}, being drained right now")
        if done.cancelled:
            raise CancelledJobError(f"job {done.job_id} was cancelled before it was through")

    on_database(settings, one if selection.event_id is not None else many)

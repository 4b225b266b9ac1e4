"""``relevo parked skip``."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.parked.one import find
from relevo.cli.parked.options import acting, confirm, on_database, selecting
from relevo.ops import parked
from relevo.ops.parked import Operator
from relevo.ports.database import Database
from relevo.storage.parking import Selection, readable


@click.command("skip")
@selecting
@acting
@click.pass_obj
def command(context: CliContext, selection: Selection, operator: Operator, dry_run: bool, yes: bool) -> None:
    """Drop one message as skipped: the one with the given id, or the first of the one key that is selected.

    If it was the first, the rest of the key drains. A redelivery does not bring it back.
    """
    parked.check_selection(selection, everything=False)
    settings = context.settings()

    async def work(database: Database) -> None:
        id, queued = await find(database, selection)
        what = f"message {queued.message.event_id} ({queued.message.type}) of key {readable(id.key)!r} of {id.topic}"
        if dry_run:
            progress(f"would skip 1 message: {what}")
            return
        confirm(f"Skip {what}?", yes=yes)
        done = await parked.drop_one(database, id, queued, operator, "skipped")
        progress(f"skipped {what}; {'its key is live' if done.live else 'the rest of its key stays in order'}")

    on_database(settings, work)

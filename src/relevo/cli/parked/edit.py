"""``relevo parked edit``."""

from __future__ import annotations

from typing import BinaryIO

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.output import echo
from relevo.cli.parked.one import find
from relevo.cli.parked.options import acting, confirm, on_database, plural, selecting
from relevo.errors import RefusedError
from relevo.ops import parked
from relevo.ops.parked import Operator
from relevo.ops.parked_edit import edit, edited
from relevo.ports.database import Database
from relevo.storage.parking import Queued, Selection


@click.command("edit")
@selecting
@click.option(
    "--payload", type=click.File("rb"), metavar="FILE", help="The new payload; - for stdin; $EDITOR if not given."
)
@acting
@click.pass_obj
def command(
    context: CliContext,
    selection: Selection,
    payload: BinaryIO | None,
    operator: Operator,
    dry_run: bool,
    yes: bool,
) -> None:
    """Put a new message with another payload in the place of a held one; it remembers the old one.

    The one with the given id, or the first of the one key that is selected. Key, headers and place stay; the old
    message counts as discarded. The key stays parked: redrive it when you are ready.
    """
    parked.check_selection(selection, everything=False)
    settings = context.settings()
    given = payload.read() if payload is not None else None

    async def work(database: Database) -> None:
        id, queued = await find(database, selection)
        body = given if given is not None else _typed(queued)
        new = edited(queued.message, body, bytes_max=settings.message_bytes_max)
        old = queued.message
        what = (
            f"message {old.event_id} ({plural(len(old.payload or b''), 'byte')}) by one of {plural(len(body), 'byte')}"
        )
        if dry_run:
            progress(f"would replace 1 message: {what}")
            return
        confirm(f"Replace {what}?", yes=yes or given is None)
        new = await edit(database, id, queued, body, operator, bytes_max=settings.message_bytes_max)
        progress(f"replaced {what}, with the id {new.event_id}. Its key stays held; next: relevo parked redrive")
        echo(str(new.event_id))

    on_database(settings, work)


def _typed(queued: Queued) -> bytes:
    """What the person makes of the payload in an editor."""
    try:
        before = (queued.message.payload or b"").decode()
    except UnicodeDecodeError:
        raise RefusedError("the payload is not text: give the new one with --payload FILE") from None
    after = click.edit(before, extension=".json")
    if after is None:
        raise RefusedError("the editor saved nothing: nothing was changed")
    if after.endswith("\n") and not before.endswith("\n"):
        after = after[:-1]
    return after.encode()

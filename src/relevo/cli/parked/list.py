"""``relevo parked list``."""

from __future__ import annotations

from typing import Literal

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.output import document, output_option, show, table
from relevo.cli.parked.options import on_database, selecting
from relevo.cli.parked.view import GroupView, KeyView, group_view, key_view
from relevo.ops import parked
from relevo.ports.database import Database
from relevo.storage.parking import Selection


@click.command("list")
@selecting
@click.option("--state", type=click.Choice(["parked", "waiting", "draining"]), help="Only keys in this state.")
@click.option("--group", "grouped", is_flag=True, help="Count by error group instead of one line per key.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="At most so many lines; groups count everything that is selected all the same.",
)
@output_option
@click.pass_obj
def command(
    context: CliContext,
    selection: Selection,
    state: str | None,
    grouped: bool,
    limit: int,
    output: Literal["table", "json", "jsonl"],
) -> None:
    """Held keys, one by one, or with --group by what went wrong: exception type and the first place in your code."""
    settings = context.settings()
    views = on_database(settings, lambda database: _views(database, selection, state, grouped, limit + 1))
    if len(views) > limit:
        views = views[:limit]
        progress(
            f"only the first {limit} {'groups' if grouped else 'keys'} are shown: narrow it down, or raise --limit"
        )
    if output == "table":
        _table(views)
    elif output == "jsonl":
        for view in views:
            document(view, output)
    else:
        document(views, output)


async def _views(
    database: Database, selection: Selection, state: str | None, grouped: bool, limit: int
) -> list[GroupView] | list[KeyView]:
    if grouped:
        return [group_view(group) for group in await parked.groups(database, selection, state=state, limit=limit)]
    return [key_view(key) for key in await parked.listing(database, selection, state=state, limit=limit)]


def _table(views: list[GroupView] | list[KeyView]) -> None:
    from relevo.cli.status_table import duration

    if not views:
        progress("nothing is held")
        return
    grouped = isinstance(views[0], GroupView)
    names = ["side", "consumer", "topic", "keys" if grouped else "key", "state", "messages"]
    names += ["oldest", "error"] if grouped else ["attempts", "for", "error"]
    rows = []
    for view in views:
        error = view.error_group or view.reason
        if isinstance(view, GroupView):
            cells = [str(view.keys), view.state, str(view.messages), duration(view.oldest_s), error]
        else:
            state = view.state + (" (now)" if view.draining_now else "")
            cells = [view.key, state, str(view.messages), str(view.attempts), duration(view.held_for_s), error]
        rows.append([view.side, view.consumer, view.topic, *cells])
    show(table(names, rows))

"""``relevo parked show``."""

from __future__ import annotations

from typing import Literal

import click

from relevo.cli.context import CliContext
from relevo.cli.output import block, document, echo, line, output_option
from relevo.cli.parked.options import on_database, plural, selecting
from relevo.cli.parked.view import KeyWithQueue, key_view, message_view
from relevo.ops import parked
from relevo.storage.parking import Selection


@click.command("show")
@selecting
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most so many messages.")
@output_option
@click.pass_obj
def command(context: CliContext, selection: Selection, limit: int, output: Literal["table", "json", "jsonl"]) -> None:
    """One held key: why and since when, and the messages in its queue with their payloads, the first one first."""
    settings = context.settings()
    key, queue = on_database(settings, lambda database: parked.show(database, selection, limit=limit))
    view = KeyWithQueue(
        key=key_view(key),
        queue=[message_view(queued) for queued in queue],
        queue_left_out=max(0, key.messages - len(queue)),
    )
    if output != "table":
        document(view, output)
        return
    from relevo.cli.status_table import duration

    about = view.key
    lines = [
        ("side", f"{about.side} {about.consumer}".strip()),
        ("topic", about.topic),
        ("key", about.key),
        ("state", about.state + (" by a process right now" if about.draining_now else "")),
        ("held for", duration(about.held_for_s)),
        ("attempts", str(about.attempts)),
        ("reason", about.reason),
        ("error group", about.error_group or "-"),
        ("error", about.error or "-"),
        ("queue", plural(about.messages, "message")),
    ]
    for name, value in lines:
        line(f"{name:<12} {value}")
    for message in view.queue:
        echo()
        line(f"{message.event_id}  {message.type}  {plural(message.payload_bytes, 'byte')}  {message.content_type}")
        if message.edited_from is not None:
            line(f"  in the place of {message.edited_from}")
        for name, value in message.headers.items():
            line(f"  {name}: {value}")
        mark = "base64 " if message.payload_is_base64 else ""
        block(f"{mark}{'(no payload)' if message.payload is None else message.payload}", "  ")
    if view.queue_left_out:
        echo(f"\n… and {plural(view.queue_left_out, 'message')} more (--limit)")

"""``relevo parked``: what is held, and what a person decides about it."""

from __future__ import annotations

import click

from relevo.cli.lazy import LazyGroup

COMMANDS = {
    "list": ("relevo.cli.parked.list", "Held keys, one by one or by what went wrong."),
    "show": ("relevo.cli.parked.show", "One key: why, since when, and its queue."),
    "redrive": ("relevo.cli.parked.redrive", "Let parked keys drain, in order, before anything later of them."),
    "skip": ("relevo.cli.parked.skip", "Drop the first message of a key as skipped; the rest drains."),
    "discard": ("relevo.cli.parked.discard", "Give up one message, or everything that is held of some keys."),
    "edit": ("relevo.cli.parked.edit", "Put a corrected message in the place of a held one."),
    "publish": ("relevo.cli.parked.publish", "Move parked messages to their dead-letter topic."),
    "from-dlq": ("relevo.cli.parked.from_dlq", "Bring messages back from a dead-letter topic."),
}


@click.group("parked", cls=LazyGroup, commands_by_name=COMMANDS)
def command() -> None:
    """Look at held keys and decide about them.

    A key is held when a message of it was given up: that message and everything behind it wait, all other keys go on.
    """

"""``relevo resume``."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext
from relevo.cli.pause import act, what_options
from relevo.ops import pauses
from relevo.storage.pausing import PauseKind


@click.command("resume")
@what_options
@click.option("--why", default="", metavar="TEXT", help="A reason for the audit.")
@click.pass_obj
def command(
    context: CliContext,
    kind: PauseKind,
    name: str,
    topic: str | None,
    consumer: str | None,
    actor: str | None,
    why: str,
) -> None:
    """Let a paused destination, topic, consumer, lane or key go on, in order, with what waited first."""
    act(context.settings(), pauses.target(kind, name, topic=topic, consumer=consumer), "resume", actor, why)

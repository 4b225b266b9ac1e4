"""``relevo pause``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.ops import pauses
from relevo.ops.acting import actor_of
from relevo.settings import Settings
from relevo.storage.pausing import KINDS, PauseKind, Target

F = TypeVar("F", bound=Callable[..., Any])


def what_options(function: F) -> F:
    """The arguments and options of ``pause`` and ``resume``."""
    decorators = (
        click.argument("kind", type=click.Choice(list(KINDS))),
        click.argument("name"),
        click.option("--topic", metavar="NAME", help="With a key: the topic it belongs to."),
        click.option("--consumer", metavar="NAME", help="With a key: stop it at this consumer, not at the relays."),
        click.option("--actor", help="Who does it; your user and host if not given."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@click.command("pause")
@what_options
@click.option("--why", required=True, metavar="TEXT", help="The reason, for whoever finds it paused.")
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
    """Stop a destination, topic, consumer, lane or key until it is resumed.

    Nothing is lost or counted as failed meanwhile, and it survives restarts. Within about a second every process has
    noticed. A destination is a topic at the broker: relays send nothing to it. A topic is that, and no consumer
    handles it. A key (0x… for bytes that are no text) is held: its messages wait in order, all others go on.
    """
    what = pauses.target(kind, name, topic=topic, consumer=consumer)
    act(context.settings(), what, "pause", actor, why)


def act(settings: Settings, what: Target, verb: Literal["pause", "resume"], actor: str | None, why: str) -> None:
    """Do it, and say what happened."""
    who = actor or actor_of()
    if on_database(settings, lambda database: pauses.change(database, what, act=verb, who=who, why=why)):
        progress(f"{what.kind} {what.name} is {'paused' if verb == 'pause' else 'resumed'}")
    else:
        progress(f"{what.kind} {what.name} was {'paused already' if verb == 'pause' else 'not paused'}: no change")

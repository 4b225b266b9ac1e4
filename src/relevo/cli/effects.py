"""``relevo effects``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Literal

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.cli.output import document, output_option
from relevo.effects import EFFECTS, Effect, EffectRunner
from relevo.ops import effects as ops
from relevo.ops.acting import actor_of
from relevo.ops.importing import import_all
from relevo.runtime.health import HealthServer
from relevo.runtime.supervise import supervise
from relevo.settings import Settings

Output = Literal["table", "json", "jsonl"]
STATES = ("pending", "sent", "done", "failed", "unknown")


@click.group("effects")
def command() -> None:
    """Outward acts: perform them, list them, settle those of which nobody knows whether they were done."""


@command.command("run")
@click.argument("effects", nargs=-1, required=True, metavar="MODULE:ATTRIBUTE...")
@click.pass_obj
def run(context: CliContext, effects: tuple[str, ...]) -> None:
    """Perform effects until SIGTERM: relevo effects run shop.effects:charge_card

    All effects that the named modules declare are performed. The first signal finishes the acts under way; the second
    leaves at once, and what was under way is unknown then.
    """
    settings = context.settings()
    import_all(effects, Effect)
    asyncio.run(supervise(lambda stop: _run(settings, stop), stop_timeout_s=settings.consumer.stop_timeout_s))


async def _run(settings: Settings, stop: asyncio.Event) -> None:
    runner = EffectRunner(EFFECTS, settings)
    async with AsyncExitStack() as stack:
        health = ""
        if settings.health.port:
            server = HealthServer(settings.health.host, settings.health.port, runner.health)
            await stack.enter_async_context(server)
            health = f", health on {settings.health.host}:{settings.health.port}"
        await runner.run(stop, lambda: progress(f"effects ready: {', '.join(runner.effects)}{health}"))


@command.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--name", help="Only effects of this name.")
@click.option("--key", help="Only the effect of this key.")
@click.option("--limit", type=click.IntRange(1), default=ops.LIST_MAX, show_default=True, help="At most so many.")
@output_option
@click.pass_obj
def list_(
    context: CliContext, state: str | None, name: str | None, key: str | None, limit: int, output: Output
) -> None:
    """The newest effects."""
    lines = on_database(
        context.settings(), lambda database: ops.listed(database, name=name, state=state, key=key, limit=limit)
    )
    if output == "json":
        document(lines, output)
    elif output == "jsonl":
        for line in lines:
            document(line, output)
    else:
        _table(lines)


@command.command("show")
@click.argument("effect_id", type=int, metavar="ID")
@output_option
@click.pass_obj
def show(context: CliContext, effect_id: int, output: Output) -> None:
    """Everything about one effect."""
    document(
        on_database(context.settings(), lambda database: ops.show(database, effect_id)),
        "json" if output == "table" else output,
    )


@command.command("resolve")
@click.argument("effect_id", type=int, metavar="ID")
@click.option("--done", "verdict", flag_value="done", help="It was done.")
@click.option("--not-done", "verdict", flag_value="not-done", help="It was not done: perform it again.")
@click.option("--why", "--reason", "why", required=True, help="How you know; kept in the audit.")
@click.option("--actor", help="Who says so; your user and host if not given.")
@click.pass_obj
def resolve(
    context: CliContext, effect_id: int, verdict: Literal["done", "not-done"] | None, why: str, actor: str | None
) -> None:
    """Say what came of an effect whose outcome is unknown, or have a failed one performed again."""
    if verdict is None:
        raise click.UsageError("say --done or --not-done")
    who = actor or actor_of()
    detail = on_database(
        context.settings(), lambda database: ops.resolve(database, effect_id, verdict, why=why, actor=who)
    )
    progress(f"effect {detail.effect_id} ({detail.name}/{detail.key}) is {detail.state} now")


def _table(lines: list[ops.EffectLine]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("id", "effect", "key", "state", "attempts", "age", "next", "what was said"):
        table.add_column(title)
    for line in lines:
        due = "a person" if line.state == "unknown" and line.due_s is None else ""
        if line.due_s is not None:
            due = f"{max(0.0, line.due_s):.0f} s"
        values = (line.name, line.key, line.state, str(line.attempts), f"{line.age_s:.0f} s", due, line.error or "")
        table.add_row(str(line.effect_id), *map(Text, values))
    Console().print(table)

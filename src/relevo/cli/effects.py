"""``relevo effects``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Literal

import click

from relevo.cli import output as terminal
from relevo.cli.context import CliContext, progress
from relevo.cli.database import on_database
from relevo.cli.output import document, output_option
from relevo.cli.worker import announce, log_options, settings_of
from relevo.effects import EFFECTS, Effect, EffectRunner
from relevo.ops import effects as ops
from relevo.ops.acting import actor_of
from relevo.ops.importing import import_all
from relevo.printable import json_text
from relevo.runtime.health import HealthServer
from relevo.runtime.supervise import supervise
from relevo.settings import Settings
from relevo.telemetry import logs

Output = Literal["table", "json", "jsonl"]
STATES = ("pending", "sent", "done", "failed", "unknown")


@click.group("effects")
def command() -> None:
    """Outward acts: perform them, list them, settle those of which nobody knows whether they were done."""


@command.command("run")
@click.argument("effects", nargs=-1, required=True, metavar="MODULE:ATTRIBUTE...")
@log_options
@click.pass_obj
def run(context: CliContext, effects: tuple[str, ...], log_level: str | None, log_format: str | None) -> None:
    """Perform effects until SIGTERM: relevo effects run shop.effects:charge_card

    All effects that the named modules declare are performed. The first signal finishes the acts under way; the second
    leaves at once, and what was under way is unknown then.
    """
    settings = settings_of(context, log_level, log_format)
    with logs.application():
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
        await runner.run(stop, lambda: announce(f"effects ready: {', '.join(runner.effects)}{health}"))


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
@click.option(
    "--output",
    "--format",
    type=click.Choice(["text", "table", "json", "jsonl"]),
    default="text",
    show_default=True,
    help="For people, as one JSON document, or the same on one line.",
)
@click.pass_obj
def show(context: CliContext, effect_id: int, output: Literal["text", "table", "json", "jsonl"]) -> None:
    """Everything about one effect."""
    found = on_database(context.settings(), lambda database: ops.show(database, effect_id))
    if output in ("json", "jsonl"):
        document(found, output)
        return
    for name in found.__struct_fields__:
        value = getattr(found, name)
        terminal.line(
            f"{name.removesuffix('_s').replace('_', ' '):<16} {'-' if value is None else _shown(name, value)}"
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


def _shown(name: str, value: object) -> str:
    """A field of an effect for people."""
    if isinstance(value, float) and name.endswith("_s"):
        return f"{value:.1f} s"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return value if isinstance(value, str) else json_text(value)


def _table(lines: list[ops.EffectLine]) -> None:
    rows = []
    for line in lines:
        due = "a person" if line.state == "unknown" and line.due_s is None else ""
        if line.due_s is not None:
            due = f"{max(0.0, line.due_s):.0f} s"
        values = (line.name, line.key, line.state, str(line.attempts), f"{line.age_s:.0f} s", due, line.error or "")
        rows.append((str(line.effect_id), *values))
    terminal.show(terminal.table(("id", "effect", "key", "state", "attempts", "age", "next", "what was said"), rows))

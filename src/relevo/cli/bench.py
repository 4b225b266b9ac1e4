"""``relevo bench``."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.output import document, echo, output_option
from relevo.errors import ConfigError, RefusedError
from relevo.message import check_name
from relevo.ops import bench as benching
from relevo.ops.acting import actor_of
from relevo.ops.bench import Sizes
from relevo.ops.bench_report import BenchReport, Plan


@click.command("bench")
@click.option("--events", type=click.IntRange(10), default=20_000, show_default=True, help="To append and drain.")
@click.option("--bytes", "size", type=click.IntRange(40), default=300, show_default=True, help="Of one payload.")
@click.option("--writers", type=click.IntRange(1, 64), default=4, show_default=True, help="At once (SQLite: 1).")
@click.option("--rate", type=click.IntRange(1), default=100, show_default=True, help="Events/s for the latency.")
@click.option("--seconds", type=click.FloatRange(0.5), default=10.0, show_default=True, help="For so long.")
@click.option("--topic", default="relevo.bench", show_default=True, help="Of its own; made if it is missing.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--yes", is_flag=True, help="Do it. Without this nothing is done.")
@click.option("--actor", help="Who does it; your user and host if not given.")
@output_option
@click.pass_obj
def command(
    context: CliContext,
    events: int,
    size: int,
    writers: int,
    rate: int,
    seconds: float,
    topic: str,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    output: Literal["table", "json", "jsonl"],
) -> None:
    """Measure your own database and broker: append, drain, latency.

    Writes real rows into the configured outbox, under a topic of its own, lets a relay process of its own send them to
    the configured broker, reads them there, and removes the rows. Refused while relays run or messages wait.
    """
    settings = context.settings()
    try:
        check_name("topic", topic)
    except RefusedError as error:
        raise ConfigError(str(error)) from None
    sizes = Sizes(topic=topic, events=events, bytes=size, writers=writers, rate=rate, seconds=seconds)
    if dry_run or not yes:
        plan = asyncio.run(benching.look(settings, sizes))
        if not dry_run:
            raise ConfigError(
                "this writes into the configured outbox and sends to the configured broker. "
                "`relevo bench --dry-run` says what it would do; --yes does it"
            )
        _show_plan(plan, output)
        return
    config = ["--config", context.config] if context.config is not None else []
    relay = [sys.executable, "-m", "relevo", *config, "relay"]
    report = asyncio.run(benching.bench(settings, sizes, relay=relay, actor=actor or actor_of(), say=progress))
    if output != "table":
        document(report, output)
    else:
        _show(report)


def _show_plan(plan: Plan, output: Literal["table", "json", "jsonl"]) -> None:
    if output != "table":
        document(plan, output)
        return
    echo(
        f"would append {plan.events + plan.followed:,} events of {plan.bytes} bytes to the outbox in "
        f"{plan.database}, topic {plan.topic},"
    )
    echo(f"send them to {plan.broker} by a relay of its own (source {plan.source}),")
    echo(f"read them there as {plan.consumer}, and remove the rows. Topic and group stay at the broker.")


def _show(report: BenchReport) -> None:
    plan, latency = report.plan, report.latency
    per_event = report.relay_cpu_s / (plan.events + plan.followed) * 1e6
    lines = [
        ("append", f"{report.append_per_s:,.0f} events/s, each a transaction, {plan.writers} writers"),
        ("start", f"{report.first_event_s:.2f} s from the relay's start to the first event"),
        ("drain", f"{report.drain_per_s:,.0f} events/s from the relay's start{_steady(report.steady_per_s)}"),
        (
            "latency",
            f"p50 {latency.p50_ms:.1f}, p95 {latency.p95_ms:.1f}, p99 {latency.p99_ms:.1f}, max {latency.max_ms:.1f} "
            f"ms from commit to consumer at {latency.reached_per_s:,.0f} events/s",
        ),
        ("relay", f"{report.relay_cpu_s:.1f} s of CPU, {per_event:.0f} µs an event, its start included"),
        ("removed", f"{report.removed:,} rows; topic {plan.topic} and group {plan.consumer} stay at the broker"),
        ("database", f"{plan.database}, source {plan.source}: {_facts(report.database_settings)}"),
        ("broker", f"{plan.broker}: a send counts when {report.broker_confirms}{_options(report.broker_options)}"),
        ("machine", _facts(report.machine)),
    ]
    for name, text in lines:
        echo(f"{name:<9} {text}")


def _steady(per_s: float | None) -> str:
    return "" if per_s is None else f", {per_s:,.0f} steady"


def _facts(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _options(names: list[str]) -> str:
    return f"; options set: {', '.join(names)}" if names else ""

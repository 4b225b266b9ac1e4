"""``relevo replay``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import click
from click.core import ParameterSource

from relevo.cli.context import CliContext, progress
from relevo.cli.output import document, echo, output_option, question
from relevo.consumer import Consumer
from relevo.consumer.replaying import FENCE_TIMEOUT_S
from relevo.errors import CancelledJobError, CheckFailedError, UsageError
from relevo.ops.acting import actor_of
from relevo.ops.importing import import_all
from relevo.ops.replay import Plan, Replays
from relevo.ops.replay_sources import Selection
from relevo.ops.replay_turn import Report
from relevo.runtime.supervise import supervise
from relevo.storage import replaying
from relevo.storage.replaying import Mode, Stored
from relevo.telemetry import logs

EXIT_PAUSED = 75
FAILURES_SHOWN = 20


UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A time with its zone, or an age like ``36h``."""
    if value is None:
        return None
    unit = UNITS.get(value[-1:])
    if unit is not None and value[:-1].isascii() and value[:-1].isdigit():
        return datetime.now(UTC) - timedelta(**{unit: int(value[:-1])})
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time: write 2026-03-01T00:00Z, or 90m, 36h, 7d") from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone: write {value}Z or {value}+02:00")
    return found


@click.command("replay")
@click.option("--consumer", "spec", metavar="MODULE:ATTRIBUTE", help="The consumer whose handlers run again, here.")
@click.option("--into", metavar="TOPIC", help="Publish the messages to this topic instead.")
@click.option(
    "--topic", "topics", multiple=True, help="Only of this topic; repeatable. All of the consumer's if not given."
)
@click.option(
    "--since", metavar="TIME", callback=moment, help="Added then or later: a time with zone, or an age like 36h."
)
@click.option("--until", metavar="TIME", callback=moment, help="Added before then.")
@click.option("--from-seq", type=click.IntRange(1), help="From this position of the outbox on.")
@click.option("--to-seq", type=click.IntRange(1), help="Up to this position, included.")
@click.option("--key", help="Only this key.")
@click.option(
    "--source",
    type=click.Choice(["outbox", "broker"]),
    default="outbox",
    show_default=True,
    help="Read the outbox and its archive, or what the broker keeps.",
)
@click.option(
    "--mode",
    type=click.Choice(["repair", "again"]),
    help="repair: handlers declared on_replay='apply' only; again: all, in a new generation of the inbox.",
)
@click.option("--why", "--reason", "why", help="The reason; kept in the audit.")
@click.option("--actor", help="Who does it; your user and host if not given.")
@click.option(
    "--rate", type=click.FloatRange(0.1), metavar="N", help="At most N messages a second; with --resume, from now on."
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=FENCE_TIMEOUT_S,
    show_default=True,
    help="again, on PostgreSQL: seconds to wait for transactions that began before a key was held.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Change nothing; say how many messages would run, by type and handler; with --resume, how far the replay is.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--resume", "job", type=click.UUID, metavar="JOB", help="Go on with a replay that was stopped or failed.")
@output_option
@click.pass_obj
def command(context: CliContext, /, **given: Any) -> int | None:
    """Process a time window, a range of the outbox or a key again.

    The handlers run in this process, beside the live consumers, whose positions do not move. The first Ctrl+C finishes
    the page and leaves a job that --resume takes up; `relevo jobs cancel` ends it for good. It waits while somebody
    paused the consumer, or a topic or key of the page at hand (the destination, with --into).
    """
    settings = context.settings()
    spec, into = given["spec"], given["into"]
    if (spec is None) == (into is None):
        raise click.UsageError("say --consumer MODULE:ATTRIBUTE, or --into TOPIC")
    _refuse_beside_resume(given)
    if into is None and given["mode"] is None and given["job"] is None:
        raise click.UsageError("say --mode repair or --mode again")
    with logs.application():
        consumer = None if spec is None else import_all([spec], Consumer)[0]
    codes: list[int] = []

    async def work(stop: asyncio.Event) -> None:
        async with Replays(settings, consumer, fence_timeout_s=given["wait_s"]) as replays:
            codes.append(await _replay(replays, stop, given))

    asyncio.run(supervise(work, stop_timeout_s=settings.consumer.stop_timeout_s))
    return codes[0] if codes else None


_STORED = {
    "topics": "--topic",
    "since": "--since",
    "until": "--until",
    "from_seq": "--from-seq",
    "to_seq": "--to-seq",
    "key": "--key",
    "source": "--source",
    "mode": "--mode",
    "why": "--why",
    "actor": "--actor",
}
"""What a replay keeps from its start."""


def _refuse_beside_resume(given: dict[str, Any]) -> None:
    if given["job"] is None:
        return
    context = click.get_current_context()
    said = [flag for name, flag in _STORED.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if said:
        raise click.UsageError(
            f"--resume goes on with what the replay was started with: leave out {', '.join(said)}. For another "
            "selection or mode start another replay"
        )


async def _replay(replays: Replays, stop: asyncio.Event, given: dict[str, Any]) -> int:
    output: Literal["table", "json", "jsonl"] = given["output"]
    job: UUID | None = given["job"]
    if job is None:
        mode: Mode = "into" if given["into"] is not None else given["mode"]
        names = ("since", "until", "from_seq", "to_seq", "key", "source", "into")
        selection = Selection(topics=tuple(given["topics"]), **{name: given[name] for name in names})
        plan = await replays.plan(selection, mode)
        if given["dry_run"]:
            _show_plan(plan, output)
            return 0
        if not given["why"]:
            raise UsageError("say --why: it is kept in the audit")
        if output == "table":
            _show_plan(plan, output, err=True)
        if not given["yes"] and not await asyncio.to_thread(question, f"Replay {plan.runs} messages?"):
            return 1
        job = await replays.start(
            selection, plan, mode=mode, why=given["why"], actor=given["actor"] or actor_of(), rate=given["rate"]
        )
        progress(f"replay {job}")
    else:
        stored = await replays.find(job)
        if stored.filter.get("into") != given["into"]:
            raise UsageError(f"replay {job} goes into {stored.filter.get('into')}, not into {given['into']}")
        if given["dry_run"]:
            _show_job(stored, output)
            return 0
    with _Bar() as bar:
        report = await replays.run(job, stop, bar.show, rate=given["rate"])
    if output == "table":
        progress(
            f"{report.state}: {report.handled} handled, {report.skipped} not for this replay, {report.failed} failed"
        )
    else:
        document(report, output)
    if report.state == "paused":
        progress(f"stopped. Go on with: relevo replay … --resume {job}")
    _say_held(report)
    if report.state == "paused":
        return EXIT_PAUSED
    if report.state == "cancelled":
        raise CancelledJobError(f"replay {job} was cancelled; what it did so far stays done")
    if report.failed:
        await _show_failures(replays, job)
        raise CheckFailedError(
            f"{report.failed} messages could not be run. Correct the cause, then: relevo replay … --resume {job}"
        )
    return 0


def _say_held(report: Report) -> None:
    if report.held_keys:
        more = f" and {len(report.held_keys) - 10} more" if len(report.held_keys) > 10 else ""
        progress(
            f"not live yet, since messages arrived meanwhile: {', '.join(report.held_keys[:10])}{more}. They are when "
            "a process of the consumer has worked those off"
        )


async def _show_failures(replays: Replays, job: UUID) -> None:
    for event_id, topic, key, error_type, error in await replays.database.run(
        replaying.failures(job, FAILURES_SHOWN), read_only=True
    ):
        name = "-" if key is None else key.decode("utf-8", "replace")
        progress(f"failed: {event_id} of {topic}, key {name}: {error_type or ''} {error}".rstrip())


def _show_plan(plan: Plan, output: Literal["table", "json", "jsonl"], *, err: bool = False) -> None:
    if output != "table":
        document(plan, output)
        return
    verb = "published" if plan.mode == "into" else f"run again ({plan.mode})"
    echo(f"{plan.total} messages match; {plan.runs} would be {verb} for {plan.target}", err=err)
    for each in plan.types:
        echo(f"  {each.count:>8}  {each.type}  {each.handler if each.runs else f'not run: {each.handler}'}", err=err)


def _show_job(stored: Stored, output: Literal["table", "json", "jsonl"]) -> None:
    """What ``--resume`` would go on with."""
    found = {
        "job_id": str(stored.job_id),
        "mode": stored.mode,
        "state": stored.state,
        "total": stored.total,
        "done": stored.done,
        "rate": stored.rate,
    }
    if output != "table":
        document(found, output)
        return
    of = "" if stored.total is None else f" of {stored.total}"
    echo(f"replay {stored.job_id} ({stored.mode}) is {stored.state}: {stored.done}{of} messages are done")


class _Bar:
    """Progress on stderr: a bar for people, nothing where nobody looks."""

    def __init__(self) -> None:
        self._waits_for: str | None = None

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task("replay", total=None)
        self._progress.start()
        return self

    def show(self, report: Report) -> None:
        if report.waits_for != self._waits_for:
            self._waits_for = report.waits_for
            progress(f"waiting: {report.waits_for}" if report.waits_for else "going on")
        self._progress.update(self._task, completed=report.done, total=report.total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

"""``relevo parked publish --to-dlq``."""

from __future__ import annotations

import click

from relevo.brokers import broker_for
from relevo.cli.context import CliContext, progress
from relevo.cli.parked.options import acting, confirm, counted, on_database, plural, selecting
from relevo.errors import CancelledJobError, CheckFailedError
from relevo.ops import parked, parked_dlq
from relevo.ops.parked import Operator
from relevo.ops.parked_dlq import Published
from relevo.ports.database import Database
from relevo.storage.parking import Selection


@click.command("publish")
@click.option("--to-dlq", is_flag=True, required=True, help="To {consumer}.{topic}.dlq; the only destination there is.")
@selecting
@click.option("--all", "everything", is_flag=True, help="Every parked key of every consumer.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option("--create-topics", is_flag=True, help="Create dead-letter topics that are missing (development).")
@acting
@click.pass_obj
def command(
    context: CliContext,
    to_dlq: bool,
    selection: Selection,
    everything: bool,
    rate: float | None,
    create_topics: bool,
    operator: Operator,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move parked messages of consumers to their dead-letter topic: byte for byte, with the causes as headers beside.

    Each is held until the broker confirmed it, then discarded with a trace. `relevo parked from-dlq` brings it back.
    Killed or interrupted and run again with the same selection, the job goes on where it stood; `relevo jobs cancel`
    ends it. One process publishes at a time. Exit code 3 if some could not be published; they stay parked.
    """
    parked.check_selection(selection, everything=everything)
    wanted = parked_dlq.check_side(selection)
    settings = context.settings()

    async def work(database: Database) -> None:
        found = await parked.count(database, wanted)
        topics = await parked_dlq.topics_of(database, wanted)
        where = ", ".join(topics)
        if dry_run or not found.keys:
            progress(f"would publish {counted(found)} to {where}" if found.keys else "nothing parked is selected")
            return
        confirm(f"Publish {counted(found)} to {where}?", yes=yes)
        broker = broker_for(settings.broker.url, settings.broker.options)
        if create_topics:
            await broker.ensure_topics(topics)
        publisher = await broker.publisher(source=settings.source_uri, send_timeout_s=settings.relay.send_timeout_s)
        try:
            done = await parked_dlq.publish(
                database,
                publisher,
                wanted,
                operator,
                lease_s=settings.consumer.lease_s,
                rate=rate,
                report=_told,
                waits=lambda: progress("another process publishes, or one that is gone has its lease: waiting"),
            )
        finally:
            await publisher.aclose()
        resumed = f" (job {done.job_id} taken up again)" if done.resumed else ""
        progress(f"published: {counted(done)}{resumed}")
        if done.cancelled:
            raise CancelledJobError(f"job {done.job_id} was cancelled; what was not published stays held")
        for problem in done.problems[:20]:
            progress(f"still held: {problem}")
        if done.problem_count:
            raise CheckFailedError(f"{plural(done.problem_count, 'key')} not published completely: still held")

    on_database(settings, work)


def _told(done: Published) -> None:
    """Progress, on stderr."""
    of = "" if done.total is None else f" of {done.total:,}"
    progress(f"{done.messages:,}{of} messages, {plural(done.keys, 'key')}")

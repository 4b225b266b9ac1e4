"""``relevo parked publish --to-dlq``."""

from __future__ import annotations

import click

from relevo.brokers import broker_for
from relevo.cli.context import CliContext, progress
from relevo.cli.parked.options import acting, confirm, counted, on_database, selecting, told
from relevo.errors import CheckFailedError
from relevo.ops import parked, parked_dlq
from relevo.ops.parked import Operator
from relevo.ports.database import Database
from relevo.storage.parking import Selection


@click.command("publish")
@click.option("--to-dlq", is_flag=True, required=True, help="To {consumer}.{topic}.dlq; the only destination there is.")
@selecting
@click.option("--all", "everything", is_flag=True, help="Every parked key of every consumer.")
@click.option("--create-topics", is_flag=True, help="Create dead-letter topics that are missing (development).")
@acting
@click.pass_obj
def command(
    context: CliContext,
    to_dlq: bool,
    selection: Selection,
    everything: bool,
    create_topics: bool,
    operator: Operator,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move parked messages of consumers to their dead-letter topic: byte for byte, with the causes as headers beside.

    Each is held until the broker confirmed it, then discarded with a trace. `relevo parked from-dlq` brings it back.
    Exit code 3 if some could not be published; they stay parked.
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
            done = await parked_dlq.publish(database, publisher, wanted, operator, report=told)
        finally:
            await publisher.aclose()
        progress(f"published: {counted(done)}")
        for problem in done.problems[:20]:
            progress(f"still held: {problem}")
        if done.problems:
            raise CheckFailedError(f"{len(done.problems)} keys were not published completely and stay held")

    on_database(settings, work)

"""``relevo parked from-dlq``."""

from __future__ import annotations

import click

from relevo.brokers import broker_for
from relevo.cli.context import CliContext, progress
from relevo.cli.parked.options import acting, confirm, on_database, plural
from relevo.ops import parked_back
from relevo.ops.parked import Operator
from relevo.ports.database import Database
from relevo.runtime.dead_letters import dlq_topic, reader_of


@click.command("from-dlq")
@click.option("--consumer", required=True, metavar="NAME", help="The consumer whose dead letters they are.")
@click.option("--topic", required=True, metavar="NAME", help="The topic they came from.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help="Seconds to wait for all shards of the topic, and between two messages.",
)
@click.option("--discarded", is_flag=True, help="Also what was discarded, or replaced by an edit.")
@acting
@click.pass_obj
def command(
    context: CliContext,
    consumer: str,
    topic: str,
    wait_s: float,
    discarded: bool,
    operator: Operator,
    dry_run: bool,
    yes: bool,
) -> None:
    """Bring back what stands in a dead-letter topic: each message is queued for its key and drains in order.

    Behind what is held of its key, if there is something. A letter that is a copy of what is still parked redrives that
    key. A message the consumer processed meanwhile is left alone, and so is one that was discarded or replaced by an
    edit, unless --discarded is given. One that Relevo did not put there is parked, with its reason.
    """
    settings = context.settings()

    async def work(database: Database) -> None:
        letters = dlq_topic(consumer, topic)
        broker = broker_for(settings.broker.url, settings.broker.options)
        subscription = await broker.subscribe(reader_of(letters, broker), [letters])
        try:
            waiting = await parked_back.waiting(subscription, wait_s=wait_s)
            found = waiting.messages
            if waiting.elsewhere:
                progress(
                    f"{plural(waiting.elsewhere, 'shard')} of {letters} could not be looked into: another reader has "
                    "them, or had them and died a moment ago. Run this again when it has ended, or with a longer --wait"
                )
            if dry_run or not found:
                empty = "the others are empty" if waiting.elsewhere else f"{letters} is empty"
                progress(f"would bring back {plural(found, 'message')} of {letters}" if found else empty)
                return
            confirm(f"Bring back {plural(found, 'message')} of {letters}?", yes=yes)
            done = await parked_back.bring_back(
                database, subscription, operator, most=found, wait_s=wait_s, home=(consumer, topic), discarded=discarded
            )
        finally:
            await subscription.aclose()
        known = f"; {plural(done.known, 'message')} known as processed" if done.known else ""
        if done.given_up:
            known += f"; {plural(done.given_up, 'message')} left out, discarded or replaced by an edit"
        redriven = f"; {plural(done.redriven, 'message')} redriven where parked" if done.redriven else ""
        strange = f"; {plural(done.strange, 'message')} of others parked, see their reasons" if done.strange else ""
        progress(f"brought back: {plural(done.queued, 'message')}{redriven}{known}{strange}")
        if done.left.messages:
            progress(
                f"{plural(done.left.messages, 'message')} of {letters} are left: they came meanwhile, or the broker "
                "did not hand them out in time. Run this again, for the latter with a longer --wait"
            )

    on_database(settings, work)

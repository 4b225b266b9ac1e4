"""``relevo parked from-dlq``."""

from __future__ import annotations

import click

from relevo.brokers import broker_for
from relevo.cli.context import CliContext, progress
from relevo.cli.parked.options import acting, confirm, on_database, plural
from relevo.ops import parked_back
from relevo.ops.parked import Operator
from relevo.ports.database import Database
from relevo.runtime.dead_letters import READER, dlq_topic


@click.command("from-dlq")
@click.option("--consumer", required=True, metavar="NAME", help="The consumer whose dead letters they are.")
@click.option("--topic", required=True, metavar="NAME", help="The topic they came from.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help="Seconds to wait for the broker to hand out messages.",
)
@acting
@click.pass_obj
def command(
    context: CliContext, consumer: str, topic: str, wait_s: float, operator: Operator, dry_run: bool, yes: bool
) -> None:
    """Bring everything back that stands in a dead-letter topic: each message is queued for its key and drains in order.

    Behind what is held of its key, if there is something. A letter that is a copy of what is still parked redrives that
    key. A message the consumer processed meanwhile is left alone.
    """
    settings = context.settings()

    async def work(database: Database) -> None:
        letters = dlq_topic(consumer, topic)
        broker = broker_for(settings.broker.url, settings.broker.options)
        subscription = await broker.subscribe(READER, [letters])
        try:
            waiting = await parked_back.waiting(subscription, wait_s=wait_s)
            found = waiting.messages
            if dry_run or not found:
                empty = f"{letters} is empty" if not waiting.elsewhere else f"nothing of {letters} can be read here"
                progress(f"would bring back {plural(found, 'message')} of {letters}" if found else empty)
                _tell(waiting.elsewhere, letters)
                return
            confirm(f"Bring back {plural(found, 'message')} of {letters}?", yes=yes)
            done = await parked_back.bring_back(database, subscription, operator, wait_s=wait_s)
        finally:
            await subscription.aclose()
        known = f"; {plural(done.known, 'message')} known as processed" if done.known else ""
        redriven = f"; {plural(done.redriven, 'message')} redriven where parked" if done.redriven else ""
        progress(f"brought back: {plural(done.queued, 'message')}{redriven}{known}")
        _tell(done.elsewhere, letters)

    on_database(settings, work)


def _tell(elsewhere: int, letters: str) -> None:
    if elsewhere:
        progress(
            f"{plural(elsewhere, 'shard')} of {letters} could not be read: another reader has them, or had them and "
            "died a moment ago. Run this again when it has ended, or with a longer --wait"
        )

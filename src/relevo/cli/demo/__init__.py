"""``relevo demo``: an order shop whose relay is killed at the worst moment, and a ledger that says what came of it."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext
from relevo.errors import CheckFailedError


@click.command("demo")
@click.option("--database", metavar="URL", help="Another database than a new SQLite file: postgresql://…")
@click.option("--broker", metavar="URL", help="Another broker than a new embedded one: kafka://…")
@click.option("--orders", type=click.IntRange(10, 100_000), default=300, show_default=True, help="Orders to place.")
@click.option("--directory", metavar="DIR", help="Where its files go and stay; a temporary folder if not given.")
@click.pass_obj
def command(context: CliContext, database: str | None, broker: str | None, orders: int, directory: str | None) -> None:
    """Lose nothing while the relay is killed, on this machine.

    Places orders in a small shop, moves their events with one relay to two consumers, kills the relay with SIGKILL
    between the broker's confirm and the settle, starts it again, and holds the ledger: placed = charged, nothing twice,
    order kept. No server and no root needed. Exit code 3 if the ledger does not hold.
    """
    from relevo.cli.demo.play import Demo
    from relevo.cli.demo.screen import Screen

    screen = Screen()
    with Demo.prepared(database, broker, orders, directory) as demo:
        holds = demo.play(screen)
    screen.next_steps(on_servers=database is not None)
    if not holds:
        raise CheckFailedError("the ledger does not hold; run with --directory DIR to keep the files and look")

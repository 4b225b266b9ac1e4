"""``relevo init``."""

from __future__ import annotations

from pathlib import Path

import click

from relevo.cli.context import CliContext, progress
from relevo.ops.init import write_settings
from relevo.settings import FILE_NAME


@click.command("init")
@click.option("--database", metavar="URL", help="postgresql://… or sqlite:///file.db")
@click.option("--broker", metavar="URL", help="kafka://host:9092, amqp://host/ or embedded:file.db")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
@click.pass_obj
def command(context: CliContext, database: str | None, broker: str | None, force: bool) -> None:
    """Write a relevo.toml with every setting and its default.

    With --config it is written there. A file that exists is kept unless --force is given.
    """
    path = Path(context.config or FILE_NAME)
    write_settings(path, database_url=database, broker_url=broker, force=force)
    progress(f"wrote {path}. Next: relevo migrate")

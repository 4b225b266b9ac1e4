"""``relevo migrate``."""

from __future__ import annotations

import click

from relevo.cli.context import CliContext, progress
from relevo.cli.output import raw
from relevo.ops import grants as granting
from relevo.ops import migrate as migrating
from relevo.settings import Settings, redact


@click.command("migrate")
@click.option("--sql", "print_sql", is_flag=True, help="Print the SQL for psql or sqlite3 instead of running it.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 3 if migrations are not applied.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be applied.")
@click.option(
    "--grant",
    "grants",
    multiple=True,
    metavar="ROLE:NAME",
    help="Grant a database role what a writer, relay, consumer or operator needs (PostgreSQL). Repeatable.",
)
@click.pass_obj
def command(context: CliContext, print_sql: bool, check: bool, dry_run: bool, grants: tuple[str, ...]) -> None:
    """Create or upgrade Relevo's tables in the configured database. Idempotent; safe when several start at once."""
    if print_sql + check + dry_run > 1:
        raise click.UsageError("--sql, --check and --dry-run exclude each other")
    if check and grants:
        raise click.UsageError("--check says nothing about --grant")
    settings = context.settings()
    wanted = granting.parse(grants)
    if print_sql:
        # Grants alone, when they were asked for: the tables were probably made long ago.
        raw(granting.sql(settings, wanted) if wanted else migrating.sql(settings))
        return
    if check:
        progress(f"up to date: schema version {migrating.check(settings)} in {redact(settings.database.url)}")
        return
    _migrate(settings, dry_run=dry_run)
    if wanted:
        if not dry_run:
            granting.apply(settings, wanted)
        verb = "would grant" if dry_run else "granted"
        for grant in wanted:
            progress(f"{verb} {grant.role} the rights of {grant.duty}")


def _migrate(settings: Settings, *, dry_run: bool) -> None:
    where = redact(settings.database.url)
    done = migrating.migrate(settings, dry_run=dry_run, report=lambda migration: progress(f"applied {migration}"))
    if dry_run:
        for migration in done.applied:
            progress(f"would apply {migration}")
    if not done.applied:
        progress(f"up to date: schema version {done.version} in {where}")
    elif not dry_run:
        progress(f"done: schema version {done.version} in {where}")
    if done.moved_from is not None:
        progress(
            f"WARNING: these tables come from another cluster (system identifier {done.moved_from}): they were "
            "restored or copied. The new identifier is recorded. If the original still runs, both deliver the "
            "same events"
        )

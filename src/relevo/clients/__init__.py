"""One place per third-party driver: Relevo's own connections."""

from __future__ import annotations

from relevo.bounds import OPERATOR_ANSWER_S
from relevo.errors import ConfigError
from relevo.loggers import guard
from relevo.ports.database import Database, Dialect
from relevo.settings import DatabaseSettings, redact

guard()


def dialect_of(url: str) -> Dialect:
    """The dialect a database URL names; raises ``ConfigError`` for one that Relevo does not read."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return "postgresql"
    if scheme == "sqlite":
        return "sqlite"
    raise ConfigError(
        f"database.url {redact(url)!r} is not one Relevo can read: use postgresql://… or sqlite:///file.db "
        "(MySQL and MariaDB come in a later version)"
    )


def database_for(
    settings: DatabaseSettings, *, connections_max: int = 4, answer_s: float = OPERATOR_ANSWER_S
) -> Database:
    """Relevo's own connections to the configured database. Connects at the first use."""
    if dialect_of(settings.url) == "postgresql":
        from relevo.clients.postgres import PostgresDatabase

        return PostgresDatabase(settings, connections_max=connections_max, answer_s=answer_s)
    from relevo.clients.sqlite import SqliteDatabase

    return SqliteDatabase(settings)

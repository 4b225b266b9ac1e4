"""Least privilege on PostgreSQL: what a role may do with Relevo's tables, by what it is for.

``writer``: the application, which appends. ``relay`` and ``consumer``: Relevo's processes. ``reader``: consumers that
read the outbox themselves. ``keeper``: whoever purges, a relay or a person. ``operator``: a person, who looks at
everything and frees or discards held keys.
Statements stand in ``storage/postgres/sql/grants.sql``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from relevo.catalog import Catalog
from relevo.clients.texts import text_session
from relevo.errors import ConfigError, UsageError
from relevo.ops.migrate import catalog_of
from relevo.settings import Settings
from relevo.storage.granting import Duty, statements

DUTIES: Final[tuple[Duty, ...]] = get_args(Duty)


@dataclass(frozen=True, slots=True)
class Grant:
    """``role``: the name of a database role that exists."""

    duty: Duty
    role: str


def parse(texts: Iterable[str]) -> list[Grant]:
    """Grants from ``writer:shop_app,relay:shop_relay`` and the like; raises ``UsageError`` naming the part."""
    grants: list[Grant] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        duty, colon, role = part.partition(":")
        if not colon or not role or duty not in DUTIES:
            raise UsageError(
                f"--grant {part!r} is not understood: write ROLE:NAME, one of {', '.join(DUTIES)} and the "
                "name of a database role"
            )
        grants.append(Grant(duty, role))
    return grants


def sql(settings: Settings, grants: Iterable[Grant]) -> str:
    """The statements, as one transaction for ``psql``. Connects to nothing."""
    return "\n".join(["begin;", *_texts(catalog_of(settings), grants), "commit;", ""])


def apply(settings: Settings, grants: Iterable[Grant]) -> None:
    """Grant, in one transaction. Raises ``DatabaseError`` for a role that does not exist, ``SchemaError`` for missing
    tables or rights."""
    texts = list(_texts(catalog_of(settings), grants))
    with text_session(settings.database) as session, session.transaction():
        for text in texts:
            session.execute(text)


def _texts(catalog: Catalog, grants: Iterable[Grant]) -> Iterable[str]:
    if catalog.dialect != "postgresql":
        raise ConfigError("SQLite has no roles: the rights on the database file and its folder decide")
    for grant in grants:
        yield f"-- {grant.duty}: {grant.role}".replace("\n", " ")
        yield statements(catalog, grant.duty, grant.role)

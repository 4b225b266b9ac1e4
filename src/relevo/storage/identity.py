"""Which tables a connection leads to, by what the server says: two URLs may mean the same, one may mean two."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.errors import RelevoError, UnreachableError
from relevo.ports.database import Database
from relevo.script import Script, Statement


@dataclass(frozen=True, slots=True)
class Tables:
    """``system_id``: of the cluster; ``None`` where this role may not know it. ``place``: the tables within it."""

    system_id: str | None
    place: str

    def same(self, other: Tables) -> bool:
        """An identifier that one side may not know counts as the same. Only a copy of these very tables could then be
        taken for them; to take one outbox for two would send it into itself for ever."""
        unknown = self.system_id is None or other.system_id is None
        return self.place == other.place and (unknown or self.system_id == other.system_id)


async def tables_of(database: Database) -> Tables:
    """On PostgreSQL. Raises as ``Database.run``."""
    place = await database.run(_ask("groups.place"), read_only=True)
    try:
        system_id = await database.run(_ask("meta.system_id"), read_only=True)
    except UnreachableError:
        raise
    except RelevoError:
        return Tables(None, place)
    return Tables(system_id, place)


def _ask(name: str) -> Script[str]:
    rows = yield Statement(name)
    return str(rows[0][0])

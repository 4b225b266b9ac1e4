"""The grants of one duty as SQL text, names filled in."""

from __future__ import annotations

from typing import Literal

from relevo.catalog import Catalog

Duty = Literal["writer", "relay", "keeper", "consumer", "reader", "operator"]


def statements(catalog: Catalog, duty: Duty, role: str) -> str:
    """Grants for ``role``, which is quoted: any name that PostgreSQL takes is taken."""
    quoted = '"' + role.replace('"', '""') + '"'
    texts = [catalog.text(f"grants.{duty}")]
    if catalog.schema is not None:
        texts.insert(0, f'grant usage on schema "{catalog.schema}" to :role')
    return "\n".join(f"{text};" for text in texts).replace(":role", quoted)

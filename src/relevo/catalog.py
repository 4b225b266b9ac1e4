"""The SQL texts of one dialect, with the names of one installation's tables filled in.

A file ``storage/<dialect>/sql/*.sql`` holds statements, each after a line ``-- name: group.statement``. ``{outbox}``
becomes the qualified, quoted table name; ``{name:outbox_unsettled}`` an unqualified one (indexes); parameters are
written ``:name``. What several statements have in common stands once, after ``-- part: group.name``, and where it
belongs as ``{part:group.name}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from relevo.errors import ConfigError
from relevo.ports.database import Dialect

_PLACEHOLDER = re.compile(r"\{(?=\w)(name:|schema|prefix)?(\w*)\}")  # not `{}`, an empty array or object
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,39}\Z")
_COMMENT = re.compile(r"^ *--.*\n?", re.MULTILINE)  # whole lines: for the reader of the file, not for every execution
_HEADING = re.compile(r"^-- (name|part): ([a-z_.]+)$", re.MULTILINE)
_PART = re.compile(r"\{part:([a-z_.]+)\}")

DEFAULT_PREFIX = "relevo_"


@dataclass(frozen=True)
class Catalog:
    """Names and texts for one installation. ``schema``: ``None`` for the connection's search path (PostgreSQL) or the
    main database (SQLite). ``prefix``: before every table, function and index name."""

    dialect: Dialect
    schema: str | None = None
    prefix: str = DEFAULT_PREFIX
    _texts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_identifier("prefix", self.prefix)
        if self.schema is not None:
            if self.dialect == "sqlite":
                raise ConfigError("SQLite has no schemas: use prefix= instead of schema=")
            check_identifier("schema", self.schema)

    def table(self, name: str) -> str:
        """The qualified and quoted name of one of Relevo's tables or functions: ``"app"."relevo_outbox"``."""
        bare = f'"{self.prefix}{name}"'
        return f'"{self.schema}".{bare}' if self.schema else bare

    def fill(self, text: str) -> str:
        """``text`` with its ``{…}`` placeholders filled in."""

        def replace(match: re.Match[str]) -> str:
            kind, name = match.groups()
            if kind == "name:":
                return f'"{self.prefix}{name}"'
            if kind == "schema":
                return self.schema or ""
            if kind == "prefix":
                return self.prefix
            return self.table(name)

        return _PLACEHOLDER.sub(replace, text)

    def text(self, name: str) -> str:
        """The SQL of statement ``name``, parameters as ``:name``. Raises ``KeyError`` for an unknown one."""
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = self.fill(_statements(self.dialect)[name])
        return found


def check_identifier(what: str, name: str) -> str:
    if not _IDENTIFIER.match(name):
        raise ConfigError(
            f"{what} {name!r} is not usable: a-z, 0-9 and _ are allowed, 40 at most, not starting with a digit"
        )
    return name


def pyformat(sql: str) -> str:
    """``:name`` parameters as psycopg's ``%(name)s``; a literal ``%`` is doubled."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def numbered(sql: str) -> tuple[str, list[str]]:
    """``:name`` parameters as asyncpg's ``$1``, and the names in that order."""
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(replace, sql), names


@cache
def _statements(dialect: Dialect) -> Mapping[str, str]:
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    folder = resources.files("relevo.storage") / _folder(dialect) / "sql"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            pieces = _HEADING.split(file.read_text("utf-8"))
            for kind, name, body in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
                if name in found[kind]:
                    raise ConfigError(f"{kind} {name!r} stands twice in the {dialect} SQL files")
                found[kind][name] = _COMMENT.sub("", body).strip().rstrip(";")
    return {name: _put_together(text, found["part"]) for name, text in found["name"].items()}


def _put_together(text: str, parts: Mapping[str, str]) -> str:
    while _PART.search(text):
        text = _PART.sub(lambda match: parts[match[1]], text)
    return text


def _folder(dialect: Dialect) -> str:
    return "postgres" if dialect == "postgresql" else dialect

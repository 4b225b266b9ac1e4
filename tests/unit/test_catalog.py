"""The catalog: names filled in, parameters translated."""

from __future__ import annotations

import pytest

from relevo.catalog import Catalog, numbered, pyformat
from relevo.errors import ConfigError
from relevo.ports.database import Dialect


def test_names() -> None:
    """Tables are qualified and quoted; index names are not qualified."""
    text = "create index {name:outbox_x} on {outbox} ({prefix}) -- {schema}"
    assert Catalog("postgresql", "app", "r_").fill(text) == 'create index "r_outbox_x" on "app"."r_outbox" (r_) -- app'
    assert Catalog("sqlite").fill(text) == 'create index "relevo_outbox_x" on "relevo_outbox" (relevo_) -- '


@pytest.mark.parametrize("bad", ["", "a-b", 'a"b', "1a", "A", "x" * 41, "a;drop"])
def test_identifiers_that_could_be_sql_are_refused(bad: str) -> None:
    """Schema and prefix go into SQL text, so they are checked where they enter."""
    with pytest.raises(ConfigError):
        Catalog("postgresql", bad)
    with pytest.raises(ConfigError):
        Catalog("postgresql", prefix=bad)


def test_sqlite_has_no_schemas() -> None:
    """Said with the way out."""
    with pytest.raises(ConfigError, match="prefix="):
        Catalog("sqlite", "app")


def test_pyformat() -> None:
    """Parameters by name, casts and doubled per cent left alone."""
    assert pyformat("select :a_1::text, '100%', :b where x % 2 = :a_1") == (
        "select %(a_1)s::text, '100%%', %(b)s where x %% 2 = %(a_1)s"
    )


def test_numbered() -> None:
    """A name used twice is one parameter."""
    assert numbered("select :b, :a::int, :b") == ("select $1, $2::int, $1", ["b", "a"])


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_both_dialects_know_the_append(dialect: Dialect) -> None:
    """Dialects are parallel texts; an unknown name is a KeyError."""
    catalog = Catalog(dialect)
    assert ":payload" in catalog.text("append.one")
    with pytest.raises(KeyError):
        catalog.text("append.none")

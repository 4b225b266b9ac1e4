"""`relevo groups` and `relevo status` where consumers read the outbox themselves, as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relevo.cli.main import cli
from relevo.errors import ConfigError, RefusedError
from tests.support.log_stores import LogStore, log_store


@pytest.fixture
def store(pg_database: str) -> LogStore:
    """With a group that has read nothing, and none of whose processes lives."""
    store = log_store(pg_database)
    store.fill(3)
    store.do("insert into relevo_group (group_name, topics) values ('billing', '{shop.order}')")
    store.do("insert into relevo_group_lane (group_name, lane) select 'billing', lane from relevo_lane")
    return store


def relevo(folder: Path, url: str, *arguments: str, typed: str = "") -> Result:
    config = folder / "relevo.toml"
    config.write_text(f'[database]\nurl = "{url}"\n')
    return CliRunner().invoke(cli, ["--config", str(config), *arguments], input=typed, catch_exceptions=True)


def test_a_group_is_listed_dropped_when_confirmed_and_gone(store: LogStore, tmp_path: Path) -> None:
    """Without a yes nothing is changed; the audit keeps who and why."""
    (group,) = json.loads(relevo(tmp_path, store.url, "groups", "list", "--output", "json").stdout)
    assert (group["name"], group["members"], group["behind"], group["topics"]) == ("billing", 0, 3, ["shop.order"])
    for command in (("groups", "list"), ("status",)):
        shown = relevo(tmp_path, store.url, *command).stdout
        assert "groups that read the outbox" in shown and "billing" in shown
    no = relevo(tmp_path, store.url, "groups", "drop", "billing", typed="n\n")
    assert no.exit_code != 0 and store.query("select count(*) from relevo_group") == [(1,)]
    arguments = ("groups", "drop", "billing", "--actor", "ada", "--reason", "replaced")
    yes = relevo(tmp_path, store.url, *arguments, typed="y\n")
    assert yes.exit_code == 0 and "the group billing is dropped: 3 messages" in yes.stderr
    assert store.query("select actor, action, reason from relevo_audit") == [("ada", "groups.drop", "replaced")]
    assert store.query("select count(*) from relevo_group_lane") == [(0,)]
    again = relevo(tmp_path, store.url, *arguments, "--yes")
    assert isinstance(again.exception, RefusedError) and "relevo groups list" in str(again.exception)
    assert json.loads(relevo(tmp_path, store.url, "groups", "list", "--output", "json").stdout) == []


def test_sqlite_has_no_groups(tmp_path: Path) -> None:
    log_store(tmp_path / "app.db")
    result = relevo(tmp_path, f"sqlite:///{tmp_path / 'app.db'}", "groups", "list")
    assert isinstance(result.exception, ConfigError) and "PostgreSQL" in str(result.exception)

"""``relevo pause`` and ``relevo resume`` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.fixture
def relevo(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    (tmp_path / "relevo.toml").write_text('[database]\nurl = "sqlite:///app.db"\n')
    assert cli("migrate").code == 0
    return cli


def test_what_is_paused_stands_in_status_with_who_and_why(relevo: Cli) -> None:
    """Every kind: paused once, shown with its reason in table and JSON, resumed once."""
    things = [
        ("destination", "shop.order"),
        ("topic", "shop.note"),
        ("consumer", "billing"),
        ("lane", "7"),
        ("key", "42", "--topic", "shop.order"),
        ("key", "0xff00", "--topic", "shop.order", "--consumer", "billing"),
    ]
    for thing in things:
        done = relevo("pause", *thing, "--why", "the bank is closed", "--actor", "ann@desk")
        assert (done.code, done.err) == (0, f"{thing[0]} {thing[1]} is paused\n")
    assert "paused already" in relevo("pause", *things[0], "--why", "me too").err
    shown = json.loads(relevo("status", "--output", "json").out)["paused"]
    assert {(each["kind"], each["name"], each["who"], each["why"]) for each in shown} == {
        (kind, name, "ann@desk", "the bank is closed") for kind, name, *_ in things
    }
    table = relevo("status").out
    assert "paused by people" in table and "shop.order at billing" in table and "the bank is closed" in table
    for thing in things:
        assert relevo("resume", *thing).err == f"{thing[0]} {thing[1]} is resumed\n"
    assert "no change" in relevo("resume", *things[0]).err
    assert json.loads(relevo("status", "--output", "json").out)["paused"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("lane", "64"), 78, "there is no lane 64"),
        (("lane", "seven"), 2, "is not a number"),
        (("key", "42"), 2, "--topic NAME"),
        (("key", "0xfg", "--topic", "t"), 2, "not hexadecimal"),
        (("consumer", "billing", "--topic", "t"), 2, "a consumer has none"),
        (("destination", "sp ace"), 2, "topic"),
    ],
)
def test_what_cannot_be_meant_is_refused(relevo: Cli, arguments: tuple[str, ...], code: int, says: str) -> None:
    """One clear line, and nothing is paused."""
    relevo("pause", *arguments, "--why", "x").refused(code, says)
    assert json.loads(relevo("status", "--output", "json").out)["paused"] == []

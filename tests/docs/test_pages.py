"""Every page: links resolve, Python compiles, tests that are named exist, and the index knows the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from relevo import Outbox
from relevo.cli.main import COMMANDS, cli
from relevo.ops.settings_text import settings_tree
from relevo.runtime.probes import KNOWN
from tests.docs.pages import DOCS, PAGES, REPO, anchors, blocks, links, name_of, prose

_TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(\w+(?:::\w+)?)`")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    """Relative links lead to a file of the repository, and to a heading where they name one."""
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if (
            not target.exists()
            or not target.is_relative_to(REPO)
            or (anchor and target.suffix == ".md" and anchor not in anchors(target))
        ):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_compiles(page: Path) -> None:
    """Every Python block is Python; a block without a file may await at its top level."""
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_tests_exist(page: Path) -> None:
    """Where a page says that a test stands behind a promise, there is that test."""
    missing = [f"{file}::{test}" for file, test in _TEST.findall(page.read_text("utf-8")) if not _exists(file, test)]
    assert missing == []


def test_every_guarantee_names_a_test() -> None:
    """Rows of the tables of guarantees, in the README and in the long form: each names at least one."""
    for page in (REPO / "README.md", DOCS / "reference" / "guarantees.md"):
        rows = [line for line in page.read_text("utf-8").splitlines() if re.match(r"\| \*\*", line)]
        assert len(rows) >= 8, page
        assert [row for row in rows if not _TEST.search(row)] == []


def test_the_index_links_every_page() -> None:
    """Nothing in docs/ that docs/README.md does not lead to."""
    index = DOCS / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert [name_of(page) for page in DOCS.rglob("*.md") if page != index and page.resolve() not in linked] == []


def _exists(file: str, name: str) -> bool:
    path = REPO / file
    if not path.is_file():
        return False
    scope: ast.Module | ast.ClassDef = ast.parse(path.read_text("utf-8"))
    for part in name.split("::"):
        found = [
            node
            for node in scope.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        if not found:
            return False
        if isinstance(found[0], ast.ClassDef):
            scope = found[0]
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_shown_exist(page: Path) -> None:
    """`make …` is a target, `relevo …` a command with that option, in every shell block."""
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text("utf-8"), re.MULTILINE))
    shown = "\n".join(block.text for block in blocks(page) if block.language in ("sh", "console"))
    assert set(re.findall(r"^\$? ?make ([a-z-]+)", shown, re.MULTILINE)) <= targets
    context = click.Context(cli, info_name="relevo")
    for name, rest in re.findall(r"(?:^|\s)relevo ([a-z]+)([^\n#|>]*)", shown):
        assert name in COMMANDS, f"relevo {name}"
        command = cli.get_command(context, name)
        assert command is not None
        while isinstance(command, click.Group):
            name, _, rest = rest.strip().partition(" ")
            command = command.get_command(context, name)
            assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, f"relevo {name}{rest}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_that_are_named_exist(page: Path) -> None:
    """`relay.lease_s` and the like, in code spans; probes have dotted names too, and `outbox` is an object as well."""
    known = {setting.path for section in settings_tree() for setting in section.settings}
    sections = {path.partition(".")[0] for path in known if "." in path}
    named = re.findall(r"`(\w+)\.(\w+)`", prose(page))
    others = {*KNOWN, *(f"outbox.{name}" for name in dir(Outbox))}
    assert {f"{section}.{name}" for section, name in named if section in sections} - known - others == set()

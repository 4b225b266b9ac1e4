"""Everything that the command line prints goes through one module, which escapes what is not printable."""

from __future__ import annotations

import ast
from pathlib import Path

import relevo.cli

CLI = Path(relevo.cli.__file__).parent
WRITERS = {"echo", "secho", "confirm", "prompt", "style", "print", "print_exc", "Console"}


def test_only_one_module_writes_to_the_terminal() -> None:
    """A command that printed by itself would print what a stranger wrote. The demo's events are its own; the bar of a
    replay shows numbers."""
    found = []
    for file in CLI.rglob("*.py"):
        if file.name == "output.py" or "demo" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func
            outside = isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name) and name.value.id in OUTSIDE
            bare = isinstance(name, ast.Name) and name.id in {"print", "Console"}
            if (outside and isinstance(name, ast.Attribute) and name.attr in WRITERS) or bare:
                found.append(f"{file.relative_to(CLI)}:{node.lineno}")
    assert [each for each in found if not each.startswith("replay.py:")] == []
    assert len(found) <= 1


OUTSIDE = {"click", "rich", "traceback", "sys"}

"""Small parts of ``relevo.settings``: a value in the tree, and an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any


def unknown(name: str, known: list[str], where: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(sorted(known))}"
    return f"{where}: unknown setting {name!r}{hint}"


def put(tree: dict[str, Any], name: Sequence[str], value: Any) -> None:
    *sections, last = name
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value

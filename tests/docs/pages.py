"""The pages of the documentation and their fenced blocks, as the tests see them.

What a block is for stands behind its language, where GitHub does not show it::

    ```python file=shop.py         written to that file in the reader's folder
    ```sh run                      typed by the reader; must succeed (``run fails=1``: must end with that code)
    ```sh run eventually           typed again until the output is as printed: work goes on in the background
    ```sh background=relay         typed in a terminal of its own; the output that follows must appear
    ```text output                 what the block before it prints; ``…`` stands for any text, alone on a line for lines
    ```python run=postgres         executed in page order, all blocks of one name in one namespace
    ```sql run=sqlite              likewise, on the page's connection

A comment ``<!-- stop relay -->`` is the reader's Ctrl+C in that terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *REPO.glob("*.md"), *(REPO / "examples").rglob("*.md")])

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)
_STOP = re.compile(r"^<!-- stop (\w+) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """``words``: bare words of the info string; ``options``: its ``name=value``. ``line``: of its first line."""

    page: Path
    line: int
    language: str
    words: frozenset[str]
    options: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(REPO)}:{self.line}"


@dataclass(frozen=True)
class Stop:
    name: str


def name_of(page: Path) -> str:
    return str(page.relative_to(REPO))


def blocks(page: Path) -> list[Block]:
    return [step for step in steps(page) if isinstance(step, Block)]


def steps(page: Path) -> list[Block | Stop]:
    """Blocks and stops in page order."""
    text = page.read_text("utf-8")
    found: list[tuple[int, Block | Stop]] = [(match.start(), Stop(match[1])) for match in _STOP.finditer(text)]
    found += [(match.start(), _block(page, text, match)) for match in _FENCE.finditer(text)]
    return [step for _, step in sorted(found, key=lambda each: each[0])]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    language, *rest = match["info"].split() or [""]
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    indent = len(match["indent"])
    body = "".join(line[indent:] if line.strip() else line for line in match["text"].splitlines(keepends=True))
    return Block(
        page,
        text.count("\n", 0, match.start()) + 2,
        language,
        frozenset(word for word in rest if "=" not in word),
        options,
        body,
    )


def links(page: Path) -> Iterator[str]:
    """Targets of the page's links, those in code left out."""
    for match in re.finditer(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        yield match[1]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        found.add(text.strip().replace(" ", "-"))
    return found

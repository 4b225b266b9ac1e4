"""The one way to a terminal: what is not printable is escaped always. ``--output`` is the same on every
listing."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from relevo.printable import json_text, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])

WIDTH_MAX = 10_000
"""Columns where the output goes to a file or a pipe: there a line is a line, and no cell is folded."""


def output_option(function: F) -> F:
    """The option, as argument ``output``."""
    option = click.option(
        "--output",
        type=click.Choice(["table", "json", "jsonl"]),
        default="table",
        show_default=True,
        help="For people, as one JSON document, or as one JSON document per line.",
    )
    return option(function)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print ``text``, which may have several lines, to stdout or stderr."""
    click.echo(printable(text, lines=True), err=err, nl=nl)


def line(text: str, *, err: bool = False) -> None:
    """Print ``text`` as one line: a line feed in it is escaped too."""
    click.echo(printable(text), err=err)


def block(text: str, indent: str) -> None:
    """Print text of others, each of its lines behind ``indent``: none of them can look like a line of ours."""
    parts = text.split("\n")
    for part in parts:
        line(f"{indent}{'' if len(parts) == 1 else '| '}{part}")


def document(value: Any, output: Literal["json", "jsonl"]) -> None:
    """Print one value to stdout: indented, or on one line. A parser reads exactly what was given."""
    click.echo(json_text(value, indent=2 if output == "json" else None))


def confirm(question: str) -> None:
    """Ask on stderr; raises ``click.Abort`` on no."""
    click.confirm(printable(question), abort=True, err=True)


def question(text: str) -> bool:
    """Ask on stderr; whether the answer is yes."""
    return click.confirm(printable(text), err=True)


def raw(text: str) -> None:
    """Print to stdout exactly this text, for a program: SQL to be run."""
    click.echo(text, nl=False)


def show_error(error: click.ClickException) -> None:
    """What click says of wrong usage, on stderr."""
    text = io.StringIO()
    error.show(text)
    echo(text.getvalue().rstrip("\n"), err=True)


def console() -> Console:
    """Where tables go: as wide as the terminal, or as wide as they are."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=WIDTH_MAX)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, header_style: str = "bold"
) -> Table:
    """A table without lines. Cells are plain text: no markup, nothing that is not printable."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, header_style=header_style, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def show(*what: RenderableType) -> None:
    """Print tables to stdout."""
    console().print(*what)

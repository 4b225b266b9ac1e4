"""``--output table|json|jsonl``, the same on every listing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])


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


def document(value: Any, output: Literal["json", "jsonl"]) -> None:
    """Print one value to stdout: indented, or on one line."""
    text = msgspec.json.encode(value)
    click.echo(msgspec.json.format(text, indent=2 if output == "json" else -1))

"""The options that the ``relevo parked`` commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from relevo.cli import database, output
from relevo.cli.context import progress
from relevo.ops.parked import Operator, Tally, whoami
from relevo.ports.database import Database
from relevo.settings import Settings
from relevo.storage.parking import Selection
from relevo.storage.ready import ensure_ready

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)\Z")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType[float]):
    """``90s``, ``30m``, ``2h``, ``7d`` as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.match(str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration: write a number and s, m, h or d, like 30m", param, ctx)
        return float(match[1]) * _UNITS_S[match[2]]


class Hex(click.ParamType[bytes]):
    """Bytes in hexadecimal, with or without ``0x``."""

    name = "hex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        try:
            return bytes.fromhex(str(value).removeprefix("0x"))
        except ValueError:
            self.fail(f"{value!r} is not hexadecimal", param, ctx)


def selecting(function: F) -> F:
    """Options that make a ``Selection``, handed over as argument ``selection``."""

    def wrapper(*args: Any, **given: Any) -> Any:
        key, key_hex = given.pop("key"), given.pop("key_hex")
        if key is not None and key_hex is not None:
            raise click.UsageError("--key and --key-hex exclude each other")
        selection = Selection(
            side=given.pop("side"),
            consumer=given.pop("consumer"),
            topic=given.pop("topic"),
            key=key.encode() if key is not None else key_hex,
            event_id=given.pop("event_id"),
            error=given.pop("error"),
            older_s=given.pop("older_than"),
        )
        return function(*args, selection=selection, **given)

    wrapper.__doc__ = function.__doc__
    wrapper.__name__ = function.__name__
    wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(
        [
            click.option("--id", "event_id", type=click.UUID, metavar="EVENT_ID", help="The message with this id."),
            click.option("--key", metavar="TEXT", help="The key, as text."),
            click.option("--key-hex", type=Hex(), metavar="HEX", help="The key, as bytes in hexadecimal."),
            click.option("--topic", metavar="NAME", help="Keys of this topic."),
            click.option("--consumer", metavar="NAME", help="Keys held by this consumer."),
            click.option(
                "--side", type=click.Choice(["relay", "consumer"]), help="Keys held by relays, or by consumers."
            ),
            click.option(
                "--error", metavar="GROUP", help="Keys of this error group, or of this exception type wherever it was."
            ),
            click.option(
                "--older-than", type=Duration(), metavar="AGE", help="Keys held at least so long: 30m, 2h, 7d."
            ),
        ]
    ):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def acting(function: F) -> F:
    """Options of what changes something: who, why, and whether to ask; as ``operator``, ``dry_run``, ``yes``."""

    def wrapper(*args: Any, **given: Any) -> Any:
        operator = Operator(given.pop("actor") or whoami(), given.pop("reason"))
        return function(*args, operator=operator, **given)

    wrapper.__doc__ = function.__doc__
    wrapper.__name__ = function.__name__
    wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(
        [
            click.option("--dry-run", is_flag=True, help="Change nothing; say exactly what would be touched."),
            click.option("--yes", is_flag=True, help="Do not ask."),
            click.option("--reason", default="", metavar="TEXT", help="Why; stands in the audit."),
            click.option("--as", "actor", metavar="NAME", help="Who; stands in the audit. user@host if not given."),
        ]
    ):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr; raises ``click.Abort`` on no, and a usage error where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: say --yes")
    output.confirm(question)


def on_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run ``work`` on a connection of its own, after a look whether the tables are there."""

    async def checked(connected: Database) -> T:
        await ensure_ready(connected, settings)
        return await work(connected)

    return database.on_database(settings, checked)


def counted(tally: Tally) -> str:
    """``3 keys with 41 messages (consumer)``."""
    sides = ", ".join(f"{count} {side}" for side, count in sorted(tally.per_side.items()))
    found = f"{plural(tally.keys, 'key')} with {plural(tally.messages, 'message')}"
    return f"{found} ({sides})" if len(tally.per_side) > 1 else found


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def told(tally: Tally, total: int | None) -> None:
    """Progress of a job, on stderr."""
    of = "" if total is None else f" of {total:,}"
    progress(f"{tally.keys:,}{of} keys, {plural(tally.messages, 'message')}")

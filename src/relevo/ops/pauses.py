"""Pausing and resuming what people name: recorded with who and why, in force within about a second everywhere."""

from __future__ import annotations

from typing import Literal

from relevo.errors import ConfigError, RefusedError, UsageError
from relevo.message import check_name
from relevo.ports.database import Database
from relevo.script import Script
from relevo.storage import laning, pausing
from relevo.storage.pausing import Pause, PauseKind, Target

HEX = "0x"
"""A key that is no text is written in hexadecimal digits behind this."""


def target(kind: PauseKind, name: str, *, topic: str | None = None, consumer: str | None = None) -> Target:
    """What ``kind`` and ``name`` mean; raises ``UsageError``. ``topic`` and ``consumer`` are for keys only."""
    if kind != "key" and (topic or consumer):
        raise UsageError(f"--topic and --consumer say which key is meant; a {kind} has none")
    try:
        for what, value in (("topic", topic), ("consumer name", consumer)):
            if value is not None:
                check_name(what, value)
        if kind in ("destination", "topic", "consumer"):
            check_name("consumer name" if kind == "consumer" else "topic", name)
    except RefusedError as error:
        raise UsageError(str(error)) from None
    match kind:
        case "destination" | "topic":
            return Target(kind, name, topic=name)
        case "consumer":
            return Target(kind, name, consumer=name)
        case "lane":
            if not name.isdecimal() or int(name) > 1023:
                raise UsageError(f"lane {name!r} is not a number: `relevo status` says how many lanes there are")
            return Target(kind, str(int(name)), lane=int(name))
        case "key":
            if topic is None:
                raise UsageError(
                    "a key belongs to a topic: --topic NAME, and --consumer NAME to stop it there and not at the relays"
                )
            return Target(kind, name, topic=topic, consumer=consumer or "", key=key_bytes(name))


def key_bytes(text: str) -> bytes:
    """A key as a person writes it: text, or ``0x…`` for bytes that are no text."""
    if text.startswith(HEX):
        try:
            return bytes.fromhex(text[len(HEX) :])
        except ValueError:
            raise UsageError(f"key {text!r} starts with 0x and is not hexadecimal") from None
    return text.encode()


async def change(database: Database, what: Target, *, act: Literal["pause", "resume"], who: str, why: str) -> bool:
    """Pause or resume; false if there was nothing to change. Raises ``ConfigError`` for a lane that does not exist,
    ``UsageError`` for a pause without a reason."""
    if act == "pause" and not why.strip():
        raise UsageError("say why: --why TEXT. Other operators see the reason in relevo status")
    return await database.run(_change(what, act, who, why.strip()))


async def listing(database: Database) -> tuple[Pause, ...]:
    """Everything that is paused now."""
    return (await database.run(pausing.load(), read_only=True)).all


def _change(what: Target, act: Literal["pause", "resume"], who: str, why: str) -> Script[bool]:
    lanes = yield from laning.lane_count()
    if what.lane is not None and what.lane >= lanes:
        raise ConfigError(f"there is no lane {what.lane}: they are 0 to {lanes - 1}")
    if act == "pause":
        return (yield from pausing.add(what, who, why))
    return (yield from pausing.remove(what, who, why))

"""Arguments in each other's place, refused with words before anything is looked at; and the setting of validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relevo.errors import ConfigError, MisuseError
from relevo.event import Declaration
from relevo.message import Message
from relevo.settings import load

_DECLARED = "__relevo__"


def refuse_mixed_up(handle: Any, event: Any) -> None:
    """Raise ``MisuseError`` for ``add(event, handle)``, for several events, and for a message."""
    if isinstance(getattr(event, _DECLARED, None), Declaration):
        return
    if isinstance(getattr(handle, _DECLARED, None), Declaration):
        raise MisuseError(
            f"the arguments of add() are the other way round: the handle comes first, then the event. Write "
            f"outbox.add({_lower(event)}, {type(handle).__name__}(...))"
        )
    if isinstance(event, Message):
        raise MisuseError("add() takes a declared event: a Message is added with add_message()")
    if isinstance(event, (list, tuple, set, frozenset)):
        raise MisuseError(f"add() takes one event, not a {type(event).__name__}: several are added with add_many()")


def each_of(handle: Any, events: Iterable[Any]) -> list[Any]:
    """The events of ``add_many``. Raises ``MisuseError`` for one event, and for the handle in their place."""
    if isinstance(getattr(events, _DECLARED, None), Declaration):
        raise MisuseError("add_many() takes several events: one is added with add()")
    if isinstance(handle, (list, tuple, set, frozenset)):
        raise MisuseError(
            "the arguments of add_many() are the other way round: the handle comes first, then the events"
        )
    try:
        data = list(events)
    except TypeError:
        raise MisuseError(f"add_many() takes a list of events, not a {type(events).__name__}") from None
    for event in data:
        refuse_mixed_up(handle, event)
    return data


def refuse_no_message(handle: Any, message: Any) -> None:
    """Raise ``MisuseError`` for ``add_message(message, handle)``, and for what is no ``Message``."""
    if isinstance(message, Message):
        return
    if isinstance(handle, Message):
        raise MisuseError(
            "the arguments of add_message() are the other way round: the handle comes first, then the message"
        )
    raise MisuseError(f"add_message() takes a Message, not a {type(message).__name__}: events are added with add()")


def validates() -> bool:
    """The setting ``outbox.validate``. Settings that cannot be read leave it on: the processes of Relevo's own say what
    is wrong with them."""
    try:
        return load().outbox.validate
    except ConfigError:
        return True


def _lower(handle: Any) -> str:
    return type(handle).__name__.lower()

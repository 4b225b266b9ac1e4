"""What an application, and so a handler, sets on a psycopg connection object: how its statements are made and read."""

from __future__ import annotations

from typing import Any

_CHOSEN = ("row_factory", "cursor_factory", "server_cursor_factory", "_adapters")
"""Attributes of a connection that an application sets, for all statements that follow."""


def attributes(connection: Any) -> dict[str, Any]:
    own = vars(connection)
    return {name: own[name] for name in _CHOSEN if name in own}


def restore(connection: Any, attributes: dict[str, Any]) -> None:
    own = vars(connection)
    for name in _CHOSEN:
        own.pop(name, None)
    own.update(attributes)


def copy(adapters: Any) -> Any:
    return type(adapters)(adapters)

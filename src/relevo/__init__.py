"""Relevo: transactional outbox, relay and inbox. The public names, nothing else.

Names are loaded when they are first used; ``import relevo`` itself loads the standard library only. ``event`` is
the exception: a module of the same name stands beside the function, and importing both here lets the function win.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from relevo import errors
from relevo._version import __version__
from relevo.event import command, event

if TYPE_CHECKING:
    from relevo.consumer import Consumer, Event, Reject, Retry
    from relevo.effects import effect
    from relevo.message import Message
    from relevo.outbox import Outbox
    from relevo.policy import Backoff, Policy
    from relevo.relay import Relay

__all__ = [
    "Backoff",
    "Consumer",
    "Event",
    "Message",
    "Outbox",
    "Policy",
    "Reject",
    "Relay",
    "Retry",
    "__version__",
    "command",
    "effect",
    "errors",
    "event",
]

_HOME = {
    "Backoff": "relevo.policy",
    "Consumer": "relevo.consumer",
    "Event": "relevo.consumer",
    "Message": "relevo.message",
    "Outbox": "relevo.outbox",
    "Policy": "relevo.policy",
    "Reject": "relevo.consumer",
    "Relay": "relevo.relay",
    "Retry": "relevo.consumer",
    "effect": "relevo.effects",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

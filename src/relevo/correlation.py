"""What a message carries without being asked: trace context, correlation and causation ids.

Context variables, so they follow tasks and ``asyncio.to_thread``. The consumer sets them while it handles a message;
a web request may set its own with ``using``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Final

from relevo.message import Message

CORRELATION: Final = "correlation_id"
CAUSATION: Final = "causation_id"
TRACEPARENT: Final = "traceparent"


@dataclass(frozen=True, slots=True)
class Context:
    """``correlation_id``: what all messages of one story share. ``causation_id``: the message (or request) that led to
    this one. ``traceparent``: W3C trace context. ``consumer``: whose handler runs, if one does."""

    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    consumer: str | None = None


_NOTHING = Context()
_current: ContextVar[Context] = ContextVar("relevo_correlation", default=_NOTHING)


def current() -> Context:
    """What messages added now would carry (the span of OpenTelemetry left out)."""
    return _current.get()


@contextmanager
def using(
    *, correlation_id: str | None = None, causation_id: str | None = None, traceparent: str | None = None
) -> Iterator[Context]:
    """Carry these on every message added inside. What is not given is inherited."""
    outer = _current.get()
    context = Context(
        correlation_id or outer.correlation_id,
        causation_id or outer.causation_id,
        traceparent or outer.traceparent,
        outer.consumer,
    )
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


@contextmanager
def handling(message: Message | None, consumer: str | None = None) -> Iterator[Context]:
    """While ``message`` is handled: its correlation id (or its id, if it starts the story), and its id as the cause.
    Nothing is inherited from outside. ``None``: several are handled at once, and none of them is the cause."""
    token = begin(message, consumer)
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def begin(message: Message | None, consumer: str | None = None, event_id: str | None = None) -> Token[Context]:
    """What ``handling`` does at first; for a context of one's own, in which nothing has to be undone. ``event_id``: the
    message's, if it is at hand as text."""
    if message is None:
        return _current.set(Context(consumer=consumer))
    event_id = event_id or str(message.event_id)
    story = message.headers.get(CORRELATION) or event_id
    return _current.set(Context(story, event_id, message.headers.get(TRACEPARENT), consumer))


def headers() -> dict[str, str]:
    """Headers for a message added now: the span that is current in OpenTelemetry wins over the inherited trace."""
    context = _current.get()
    found: dict[str, str] = {}
    traceparent = _span() or context.traceparent
    if traceparent:
        found[TRACEPARENT] = traceparent
    if context.correlation_id:
        found[CORRELATION] = context.correlation_id
    if context.causation_id:
        found[CAUSATION] = context.causation_id
    return found


def _span() -> str | None:
    """The current span as a ``traceparent``; asked only if the application itself has loaded OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"

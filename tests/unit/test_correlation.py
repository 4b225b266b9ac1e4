"""What messages carry without being asked."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from relevo import Message, correlation
from relevo.errors import RefusedError
from relevo.ids import uuid7
from relevo.outbox.building import build
from relevo.outbox.options import AddOptions
from tests.support.events import OrderPlaced

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def message(**headers: str) -> Message:
    return Message(event_id=uuid7(), type="a.b", topic="a", payload=b"", created_at=datetime.now(UTC), headers=headers)


def test_nothing_by_default() -> None:
    """No context, no headers."""
    assert build(OrderPlaced(1), 1000).headers == {}


def test_first_message_of_a_story() -> None:
    """Handling a message without a correlation id: its own id becomes the story's, and is the cause."""
    cause = message(traceparent=TRACE)
    with correlation.handling(cause):
        made = build(OrderPlaced(1), 1000)
    event_id = str(cause.event_id)
    assert made.headers == {"correlation_id": event_id, "causation_id": event_id, "traceparent": TRACE}
    assert build(OrderPlaced(1), 1000).headers == {}


def test_later_message_of_a_story() -> None:
    """The correlation id is passed on, the cause is the message at hand; an outer context does not leak in."""
    cause = message(correlation_id="story")
    with correlation.using(traceparent=TRACE, correlation_id="outer"), correlation.handling(cause):
        made = build(OrderPlaced(1), 1000)
    assert made.headers == {"correlation_id": "story", "causation_id": str(cause.event_id)}


def test_arguments_win_over_headers_over_context() -> None:
    """The nearer word counts."""
    with correlation.using(correlation_id="context", causation_id="context"):
        made = build(
            OrderPlaced(1),
            1000,
            AddOptions(headers={"causation_id": "headers", "x": "y"}, correlation_id="argument"),
        )
    assert made.headers == {"correlation_id": "argument", "causation_id": "headers", "x": "y"}


def test_using_inherits() -> None:
    """What is not given comes from outside."""
    with correlation.using(correlation_id="a"), correlation.using(causation_id="b") as inner:
        assert inner == correlation.current() == correlation.Context("a", "b", None)


def test_a_bad_id_is_refused() -> None:
    """Ids are headers and must survive every broker."""
    with pytest.raises(RefusedError, match="correlation_id"):
        build(OrderPlaced(1), 1000, AddOptions(correlation_id="a\0b"))


async def test_tasks_do_not_mix() -> None:
    """Two messages handled at the same time keep their own context, in threads as well."""

    async def handle(one: Message) -> str:
        with correlation.handling(one):
            await asyncio.sleep(0)
            return await asyncio.to_thread(lambda: correlation.headers()["causation_id"])

    causes = [message() for _ in range(10)]
    assert await asyncio.gather(*map(handle, causes)) == [str(cause.event_id) for cause in causes]


@pytest.mark.parametrize("valid", [True, False])
def test_the_current_span(valid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry is asked if the application has loaded it; its span wins over the context, an invalid one does
    not."""
    context = SimpleNamespace(is_valid=valid, trace_id=0xABC, span_id=0xDEF, trace_flags=1)
    span = SimpleNamespace(get_span_context=lambda: context)
    stand_in: Any = SimpleNamespace(get_current_span=lambda: span)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", stand_in)
    with correlation.using(traceparent=TRACE):
        headers = correlation.headers()
    assert headers == {"traceparent": f"00-{'abc':0>32}-{'def':0>16}-01" if valid else TRACE}

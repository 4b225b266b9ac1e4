"""Declaring consumers and handlers: mistakes are ConfigErrors at the start, never surprises at the first message."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from relevo import Consumer, Event, effect
from relevo.consumer import ConsumerRunner
from relevo.consumer.routing import Routes, overlap
from relevo.consumer.start import sources_of
from relevo.errors import ConfigError
from relevo.settings import DatabaseSettings, Settings
from tests.support.events import ChargeCard, OrderPlaced

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


def consumer(**options: Any) -> Consumer:
    return Consumer("billing", ["shop.order"], **options)


def routes(*selectors: type | str) -> Routes:
    declared = consumer()
    for selector in selectors:
        declared.on(selector)(lambda event: None)
    return declared.routes()


def test_the_exact_type_wins_over_a_pattern() -> None:
    """Exactly one handler per message, and the more specific one."""
    found = routes("shop.order.*", OrderPlaced)
    exact, pattern = found.find("shop.order.placed"), found.find("shop.order.paid")
    assert exact is not None and exact.selector == "shop.order.placed"
    assert pattern is not None and pattern.selector == "shop.order.*"
    assert found.find("shop.cart.paid") is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a.*", "a.*", True),
        ("a.*", "a.b.*", True),
        ("a.*", "b.*", False),
        ("*.placed", "shop.*", True),
        ("*.placed", "*.paid", False),
        ("a*c", "ab*c", True),
        ("*a", "*b", False),
        ("*", "x.y", True),
        ("a.*.c", "a.b.*d", False),
    ],
)
def test_overlapping_patterns_are_told(first: str, second: str, expected: bool) -> None:
    """Ambiguity is refused at the declaration, so it must be seen for any two patterns, in either order."""
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected


def test_two_handlers_for_one_message_are_refused() -> None:
    with pytest.raises(ConfigError, match="two handlers for"):
        routes(OrderPlaced, "shop.order.placed")
    with pytest.raises(ConfigError, match="would match both"):
        routes("shop.*", "shop.order.*")


def test_skip_types_are_names_or_patterns() -> None:
    declared = consumer(skip_types=["shop.order.viewed", "shop.cart.*"])
    declared.on(OrderPlaced)(lambda event: None)
    found = declared.routes()
    assert found.skips("shop.order.viewed") and found.skips("shop.cart.emptied")
    assert not found.skips("shop.order.paid")


def _no_parameters() -> None: ...
def _three(event: Any, tx: Any, more: Any) -> None: ...
def _keyword_only(event: Any, *, tx: Any) -> None: ...
def _generator(event: Any) -> Any:
    yield event


async def _async_generator(event: Any) -> Any:
    yield event


def _wrong_kind(event: Any, tx: int) -> None: ...
def _cannot_await(event: Any, tx: AsyncSession) -> None: ...


@pytest.mark.parametrize(
    "function",
    [_no_parameters, _three, _keyword_only, _generator, _async_generator, _wrong_kind, _cannot_await, print, object()],
)
def test_signatures_that_cannot_work_are_refused(function: Any) -> None:
    with pytest.raises(ConfigError):
        consumer().on(OrderPlaced)(function)


def test_a_blocking_tx_in_an_async_handler_is_refused() -> None:
    from sqlalchemy.orm import Session

    async def handle(event: Any, tx: Any) -> None: ...

    handle.__annotations__["tx"] = Session
    with pytest.raises(ConfigError, match="block the event loop"):
        consumer().on(OrderPlaced)(handle)


def test_an_annotation_imported_for_type_checking_only_is_understood() -> None:
    """AsyncSession is imported under TYPE_CHECKING here, so only its text is there at run time."""
    declared = consumer()

    async def handle(event: Event[OrderPlaced], tx: AsyncSession) -> None: ...

    declared.on(OrderPlaced)(handle)
    kind = declared.handlers[0].kind
    assert kind is not None and kind.name == "sqlalchemy AsyncSession"


def test_a_default_argument_is_not_a_transaction() -> None:
    declared = consumer()

    def handle(event: Any, factor: int = 2) -> None: ...

    declared.on(OrderPlaced)(handle)
    assert not declared.handlers[0].wants_tx


def test_a_kind_the_database_cannot_give_is_refused() -> None:
    """A handler with a sqlite3.Connection, and a PostgreSQL URL."""
    declared = consumer()

    def handle(event: Any, tx: sqlite3.Connection) -> None: ...

    declared.on(OrderPlaced)(handle)
    with pytest.raises(ConfigError, match="not of that kind"):
        sources_of(declared, DatabaseSettings(url="postgresql://localhost/app"))


def test_names_topics_and_tx_are_checked() -> None:
    for bad in (
        lambda: Consumer("bil ling", ["shop.order"]),
        lambda: Consumer("billing", []),
        lambda: Consumer("billing", "shop.order"),
        lambda: Consumer("billing", ["shop order"]),
        lambda: Consumer("billing", ["shop.order"], tx=42),
        lambda: Consumer("billing", ["shop.order"], on_unknown="skip"),  # type: ignore[arg-type]
        lambda: Consumer("billing", ["shop.order"], skip_types="shop.*"),
        lambda: Consumer("billing", ["shop.order"], skip_types=["shop..*"]),
        lambda: Consumer("billing", ["shop.order"], skip_types=[OrderPlaced]),  # type: ignore[list-item]
        lambda: Consumer("billing", ["shop.order"], order="keys"),  # type: ignore[arg-type]
        lambda: Consumer("billing", ["shop.order"], on_rejected="parc"),  # type: ignore[arg-type]
        lambda: Consumer("billing", ["shop.order"], retry=5),  # type: ignore[arg-type]
        lambda: Consumer("billing", ["shop.order"], inline_retry_s=-1),
        lambda: Consumer("billing", ["shop.order"], inline_retry_s=float("nan")),
        lambda: consumer().on(OrderPlaced, order="None"),  # type: ignore[arg-type]
        lambda: consumer().on(OrderPlaced, on_rejected="Skip"),  # type: ignore[arg-type]
        lambda: consumer().on_batch(OrderPlaced, inline_retry_s="2"),  # type: ignore[arg-type]
        lambda: effect(lambda request: None),  # type: ignore[arg-type]
        lambda: consumer().on(int),
        lambda: consumer().on("no such thing"),
        lambda: consumer().routes(),
        lambda: ConsumerRunner([], Settings()),
        lambda: ConsumerRunner([consumer(), Consumer("billing", ["other"])], Settings()),
    ):
        with pytest.raises(ConfigError):
            bad()


def test_a_handler_stays_a_function() -> None:
    """The decorator returns what it was given, so that a test can call it."""

    def handle(event: Event[ChargeCard]) -> None: ...

    assert consumer().on(ChargeCard)(handle) is handle


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ([OrderPlaced], False),
        (["shop.order.placed"], False),
        ([OrderPlaced, ChargeCard], True),
        (["shop.*"], True),
        (["declared.nowhere"], True),
    ],
)
def test_who_takes_commands(selectors: list[type | str], expected: bool) -> None:
    """A consumer of declared events only takes no commands; one of a command, a pattern or an unknown name may."""
    declared = consumer()
    for selector in selectors:
        declared.on(selector)(lambda event: None)
    assert declared.takes_commands is expected

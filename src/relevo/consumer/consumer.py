"""Declaring a consumer: a name, topics, and one handler per type. A description: it connects to nothing."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from relevo.codec import UnresolvedError, codec_of
from relevo.consumer.annotations import check_first
from relevo.consumer.handlers import Handler, OnReplay, read
from relevo.consumer.routing import Routes, is_pattern
from relevo.errors import ConfigError, RefusedError
from relevo.event import REGISTRY, declaration_of
from relevo.naming import check_dotted, check_name
from relevo.policy import Backoff, OnRejected, Order, Policy
from relevo.storage.transactions import source_of

F = TypeVar("F", bound=Callable[..., Any])


class Consumer:
    """A named group of handlers. The name is its identity in the inbox: renaming it processes everything again.

    ``topics``: what it subscribes to. ``tx``: where transactions come from (sessionmaker, engine, pool, or a function
    that returns a connection), of the *same database* that holds Relevo's tables; ``None`` for the configured one.
    ``retry``, ``order``, ``on_rejected`` and ``inline_retry_s`` are defaults for its handlers. ``skip_types``: types or
    patterns without a handler that are passed over; any other type without a handler is parked, not lost. ``durable``:
    for slow handlers; a message is stored in the database and acknowledged, and handled from there, in the same order.
    ``dead_letters``: a copy of what is given up goes to the topic ``{name}.{topic}.dlq`` too. ``batch``: messages in
    one transaction at most, as long as nothing goes wrong (``None``: as configured; 1: never). ``pipeline``: whether a
    batch on psycopg sends statements without waiting for the answer to the one before.
    """

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        *,
        tx: Any = None,
        retry: Backoff | None = None,
        order: Order = "key",
        on_rejected: OnRejected = "park",
        on_unknown: Literal["park"] = "park",
        skip_types: Sequence[str] = (),
        inline_retry_s: float = 2.0,
        durable: bool = False,
        dead_letters: bool = False,
        batch: int | None = None,
        pipeline: bool = True,
    ) -> None:
        try:
            check_name("consumer name", name)
            for topic in topics:
                check_name("topic", topic)
        except RefusedError as error:
            raise ConfigError(str(error)) from None
        if isinstance(topics, str) or not topics:
            raise ConfigError(f"consumer {name!r} wants a list of topics, at least one")
        if isinstance(skip_types, str):
            raise ConfigError(f"consumer {name!r}: skip_types is a list of types and patterns, not one text")
        for skipped in skip_types:
            _selected(skipped if isinstance(skipped, str) else "")
        if batch is not None and batch < 1:
            raise ConfigError(f"consumer {name!r}: batch is how many messages one transaction may have, 1 or more")
        if on_unknown != "park":
            raise ConfigError(f"consumer {name!r}: on_unknown is 'park'; name the types to pass over in skip_types=[…]")
        self.name = name
        self.topics: tuple[str, ...] = tuple(dict.fromkeys(topics))
        self.tx = tx
        self.skip_types: tuple[str, ...] = tuple(skip_types)
        self.policy = Policy(retry or Backoff(), on_rejected, order, inline_retry_s)
        self.durable = durable
        self.dead_letters = dead_letters
        self.batch = batch
        self.pipeline = pipeline
        self._handlers: list[Handler] = []
        if tx is not None:
            source_of(tx)  # refuses what nothing could come from

    def on(
        self,
        what: type | str,
        *,
        retry: Backoff | None = None,
        order: Order | None = None,
        on_replay: OnReplay = "skip",
        on_rejected: OnRejected | None = None,
        inline_retry_s: float | None = None,
        durable: bool | None = None,
        outward: bool | None = None,
    ) -> Callable[[F], F]:
        """Declare the handler of a class (``@event`` or ``@command``), a type's name or a pattern (``"shop.order.*"``).

        A class is decoded; a name or pattern gets the raw ``Message`` as ``event.data``. The handler takes ``(event)``
        or ``(event, tx)``; what ``tx`` is follows from its annotation. ``durable`` as for the consumer. ``outward``: it
        acts outside its transaction, so it never shares one with others, whose failure would make it act again; this is
        what is assumed of a handler that takes no ``tx``. Raises ``ConfigError`` for what cannot work.
        """
        if on_replay not in ("skip", "apply"):
            raise ConfigError(f"on_replay is 'skip' or 'apply', not {on_replay!r}")
        return self._declare(
            what,
            self._policy(retry, on_rejected, order, inline_retry_s),
            on_replay,
            durable=self.durable if durable is None else durable,
            outward=outward,
        )

    def on_batch(
        self,
        what: type | str,
        *,
        retry: Backoff | None = None,
        order: Order | None = None,
        on_replay: OnReplay = "skip",
        on_rejected: OnRejected | None = None,
        inline_retry_s: float | None = None,
    ) -> Callable[[F], F]:
        """As ``on``, for a handler that takes a list of events, ``(events, tx)``: one type, new ones only, those of a
        key in order, all in one transaction. Up to the consumer's ``batch`` of them, often one alone. When it raises,
        everything is rolled back and the halves run by themselves, down to the one event that is at fault, which is
        retried or parked like any other. Raises ``ConfigError`` for what cannot work.
        """
        if on_replay not in ("skip", "apply"):
            raise ConfigError(f"on_replay is 'skip' or 'apply', not {on_replay!r}")
        return self._declare(
            what, self._policy(retry, on_rejected, order, inline_retry_s), on_replay, durable=False, takes_many=True
        )

    def _policy(
        self,
        retry: Backoff | None,
        on_rejected: OnRejected | None,
        order: Order | None,
        inline_retry_s: float | None,
    ) -> Policy:
        return Policy(
            retry or self.policy.retry,
            on_rejected or self.policy.on_rejected,
            order or self.policy.order,
            self.policy.inline_retry_s if inline_retry_s is None else inline_retry_s,
        )

    def _declare(
        self,
        what: type | str,
        policy: Policy,
        on_replay: OnReplay,
        *,
        durable: bool,
        outward: bool | None = None,
        takes_many: bool = False,
    ) -> Callable[[F], F]:
        selector, data_type = _selected(what)

        def declare(function: F) -> F:
            handler = read(
                *(function, selector, data_type, policy, on_replay, durable), outward=outward, takes_many=takes_many
            )
            check_first(function, data_type, takes_many, sys._getframe(1).f_locals)
            Routes(self.name, [*self._handlers, handler], self.skip_types)
            self._handlers.append(handler)
            return function

        return declare

    @property
    def handlers(self) -> Sequence[Handler]:
        return tuple(self._handlers)

    @property
    def takes_commands(self) -> bool:
        """Whether a handler is for a command, or may be: a pattern or a name that is declared nowhere."""
        declared = [REGISTRY.find(handler.selector) for handler in self._handlers]
        return any(declaration is None or declaration.kind == "command" for declaration in declared)

    @property
    def commands(self) -> Sequence[str]:
        """The declared commands it has a handler of its own for; not what a pattern may match."""
        declared = [REGISTRY.find(handler.selector) for handler in self._handlers]
        return tuple(found.type for found in declared if found is not None and found.kind == "command")

    def routes(self) -> Routes:
        """The handlers as they are now, ready to look up."""
        if not self._handlers:
            raise ConfigError(f"consumer {self.name!r} has no handler: declare one with @{self.name}.on(…)")
        for handler in self._handlers:
            if handler.data_type is not None:
                try:
                    codec_of(handler.data_type)
                except RefusedError as error:
                    raise ConfigError(f"consumer {self.name!r}: {error}") from None
        return Routes(self.name, self._handlers, self.skip_types)

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, topics={list(self.topics)!r}, handlers={len(self._handlers)})"


def _selected(what: type | str) -> tuple[str, type | None]:
    """The selector, and the class to decode to. Raises ``ConfigError`` for a name that no type has, and for a class
    that is not declared or cannot be read."""
    if not isinstance(what, (type, str)):
        raise ConfigError(
            f"on() takes a declared class, a type's name or a pattern, not an object of type {type(what).__name__}"
        )
    try:
        if isinstance(what, str):
            check_dotted("type", re.sub(r"\*+", "x", what) if is_pattern(what) else what)
            return what, None
        declaration = declaration_of(what)
        with contextlib.suppress(UnresolvedError):  # asked again at the start
            codec_of(declaration.cls)
    except RefusedError as error:
        raise ConfigError(str(error)) from None
    return declaration.type, declaration.cls

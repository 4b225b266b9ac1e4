"""Declaring an effect: a name, the function that performs it, and what is known about repeating it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from relevo.effects.verdicts import Verdict
from relevo.errors import ConfigError, RefusedError
from relevo.naming import check_name
from relevo.policy import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRequest:
    """What the function gets. ``idempotency_key``: the same for every attempt, to be handed to whoever performs the
    act. ``attempt``: 1 for the first. ``event_id``, ``consumer``: whose handler recorded it, if one did."""

    name: str
    key: str
    data: Any
    idempotency_key: UUID
    attempt: int
    event_id: UUID | None = None
    consumer: str | None = None


Act = Callable[[EffectRequest], Any]
Verify = Callable[[EffectRequest], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """A declared effect; calling it calls the function, as a test would. ``idempotent``: the receiver honours
    ``idempotency_key``, so that an act of unknown outcome may be sent again."""

    name: str
    function: Act = field(repr=False)
    verify: Verify | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    retry: Backoff = field(default_factory=Backoff)
    idempotent: bool = False

    def __post_init__(self) -> None:
        try:
            check_name("effect name", self.name)
        except RefusedError as error:
            raise ConfigError(str(error)) from None
        if not callable(self.function):
            raise ConfigError(f"effect {self.name!r}: its function cannot be called")
        if not_run(self.function):
            raise ConfigError(
                f"effect {self.name!r}: its function is a generator, which nothing runs: use a def or an async def"
            )
        if self.timeout_s <= 0:
            raise ConfigError(f"effect {self.name!r}: timeout_s must be above 0")

    @property
    def asks(self) -> bool:
        """Whether something can be done by itself about an unknown outcome."""
        return self.verify is not None or self.idempotent

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine: an ``async def``, also behind ``functools.partial`` and as a class's
        ``__call__``."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004 - the method, to look at it
        )

    def __call__(self, request: EffectRequest) -> Any:
        return self.function(request)


def not_run(function: Act) -> bool:
    """Whether calling it only makes a generator."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method, to look at it
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (function, called))


class Registry:
    """The declared effects by name. One per process is the rule; a test may make its own."""

    def __init__(self) -> None:
        self._by_name: dict[str, Effect] = {}

    def add(self, effect: Effect) -> Effect:
        """Raises ``ConfigError`` for a second effect of the name, unless it is the same function declared again (a
        module that was reloaded)."""
        known = self._by_name.get(effect.name)
        if known is not None and _where(known.function) != _where(effect.function):
            raise ConfigError(
                f"the effect {effect.name!r} is declared twice: by {_where(known.function)} and "
                f"{_where(effect.function)}. Give one of them another name"
            )
        self._by_name[effect.name] = effect
        return effect

    def __iter__(self) -> Iterator[Effect]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return "EFFECTS" if self is globals().get("EFFECTS") else f"Registry({', '.join(self._by_name)})"


EFFECTS: Final = Registry()
"""What ``@effect``, ``webhook`` and ``email`` declare."""


def effect(
    name: str,
    *,
    verify: Verify | None = None,
    timeout_s: float = 10.0,
    retry: Backoff | None = None,
    idempotent: bool = False,
    registry: Registry = EFFECTS,
) -> Callable[[Act], Effect]:
    """Declare the function below as the one that performs ``name``; plain (it runs in a thread) or ``async``.

    It gets an ``EffectRequest`` and returns a result that JSON can hold, or ``None``. It may raise ``EffectRefused``
    (failed) or ``NotDone`` (tried again). Any other exception, ``timeout_s`` and the death of the process leave the
    outcome *unknown*: then ``verify`` is asked, if there is one; the act is repeated only if ``idempotent``.
    Raises ``ConfigError`` for a name that cannot be.
    """
    if not isinstance(name, str):
        raise ConfigError('@effect takes the name of the effect: write @effect("charge.card")')

    def declare(function: Act) -> Effect:
        return registry.add(Effect(name, function, verify, timeout_s, retry or Backoff(), idempotent))

    return declare


def _where(function: Act) -> str:
    kind = type(function)
    module = getattr(function, "__module__", kind.__module__)
    return f"{module}.{getattr(function, '__qualname__', kind.__qualname__)}"

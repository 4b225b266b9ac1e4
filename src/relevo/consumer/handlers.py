"""One handler: its function, read once at the declaration, and what the team chose for it."""

from __future__ import annotations

import concurrent.futures
import inspect
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from relevo.codec import codec_of
from relevo.consumer.headers import headers_of
from relevo.errors import ConfigError
from relevo.message import JSON, Message
from relevo.policy import Policy
from relevo.storage.transactions import Kind
from relevo.storage.transactions.kinds import ACCEPTED, kind_of
from relevo.total import attribute, text_of

Function = Callable[..., Any]
_PROMISES = Awaitable, Generator, AsyncGenerator, concurrent.futures.Future
OnReplay = Literal["skip", "apply"]


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """``data_type``: what the payload is decoded to; ``None`` gives the raw ``Message``. ``wants_tx``: whether the
    function takes a second argument; ``kind``: which one, ``None`` for what the consumer's ``tx=`` implies."""

    function: Function
    selector: str
    data_type: type | None
    policy: Policy
    on_replay: OnReplay
    is_async: bool
    wants_tx: bool
    kind: Kind | None
    durable: bool = False
    """Stored and acknowledged first, handled from the table."""
    outward: bool = False
    """Does something outside the transaction: never in one with others, which could roll it back."""
    takes_many: bool = False
    """Gets a list of events, declared by ``on_batch``."""

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def place(self) -> str:
        """``module:function``, as errors name it."""
        return f"{text_of(attribute(self.function, '__module__'))}:{text_of(attribute(self.function, '__qualname__'))}"

    @property
    def line(self) -> str:
        """``module:function:line``."""
        code = attribute(inspect.unwrap(self.function), "__code__")
        return f"{self.place}:{attribute(code, 'co_firstlineno')}"

    def data_of(self, message: Message) -> Any:
        """The decoded payload. Raises ``UndecodableError`` with the path, also for what is not JSON."""
        if self.data_type is None:
            return msgspec.structs.replace(message, headers=headers_of(message.headers))
        return codec_of(self.data_type).decode(message.payload)


def read(
    function: Function,
    selector: str,
    data_type: type | None,
    policy: Policy,
    on_replay: OnReplay,
    durable: bool = False,
    *,
    outward: bool | None = None,
    takes_many: bool = False,
) -> Handler:
    """The handler of ``function``. Raises ``ConfigError`` for a signature that cannot work."""
    where = f"handler {getattr(function, '__qualname__', function)!r} of {selector!r}"
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"{where} is a generator: a handler is a plain def or an async def that returns nothing")
    target = function if inspect.isfunction(function) or inspect.ismethod(function) else None
    if target is None:
        raise ConfigError(f"{where} is not a function: declare a def or an async def")
    parameters = list(inspect.signature(target).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not positional or len(required) > 2 or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise ConfigError(f"{where} must take (event) or (event, tx), and takes {inspect.signature(target)}")
    is_async = inspect.iscoroutinefunction(target)
    _refuse_promise(target, where, is_async)
    wants_tx = len(positional) >= 2 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "tx")
    kind = _kind(target, positional[1], where, is_async) if wants_tx else None
    if outward is None:
        outward = not wants_tx and not takes_many  # what else could it be there for
    return Handler(
        *(target, selector, data_type, policy, on_replay, is_async, wants_tx, kind, durable), outward, takes_many
    )


def _refuse_promise(function: Function, where: str, is_async: bool) -> None:
    """What a handler is declared to return must not be work that nothing would run."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - names imported for type checking only; what comes back is looked at then
        return
    origin = typing.get_origin(returned) or returned
    if isinstance(origin, type) and issubclass(origin, _PROMISES):
        hint = "await it in the handler" if is_async else "make the handler an `async def` and await it"
        raise ConfigError(f"{where} is declared to return {origin.__name__}, which nothing would run: {hint}")


def _kind(function: Function, parameter: inspect.Parameter, where: str, is_async: bool) -> Kind | None:
    annotation = _annotation(function, parameter)
    if annotation in (inspect.Parameter.empty, Any, object):
        return None
    kind = kind_of(annotation)
    if kind is None:
        raise ConfigError(
            f"{where} annotates {parameter.name!r} as {annotation!r}, which is not a transaction Relevo can give. "
            f"Accepted: {ACCEPTED}. If it is imported under `if TYPE_CHECKING:`, import it at run time"
        )
    if kind.library == "sqlite3":
        from relevo.storage.transactions import kinds

        return kinds.SQLITE_ON_LOOP if is_async else kinds.SQLITE
    if kind.is_async and not is_async:
        raise ConfigError(f"{where} is a plain def and cannot await its {kind.name}: make it `async def`")
    if is_async and not kind.is_async:
        raise ConfigError(
            f"{where} is `async def` and its {kind.name} would block the event loop: make it a plain def (it runs in a "
            "thread), or ask for the asynchronous kind"
        )
    return kind


def _annotation(function: Function, parameter: inspect.Parameter) -> Any:
    try:
        return typing.get_type_hints(function).get(parameter.name, inspect.Parameter.empty)
    except Exception:  # noqa: BLE001 - names imported for type checking only; the text may still tell
        return parameter.annotation


def json_expected(message: Message) -> bool:
    """Whether the payload says it is JSON (a parameter such as a charset aside)."""
    return message.content_type.partition(";")[0].strip().lower() == JSON

"""Hostile acts of effects, and hostile ``verify`` functions: the deeds of handlers, and what acts alone can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from relevo import Backoff
from relevo.effects import Done, Effect, EffectRefused, EffectRequest, NotDone, Registry, Unknown, effect
from tests.support.hostile.deeds import DEEDS, Deed, Hand
from tests.support.hostile.errors import ODD_ERRORS, OddText, Unprintable
from tests.support.hostile.kinds import adrive, drive
from tests.support.relays import Store

QUICK = Backoff(attempts=2, base=timedelta(milliseconds=2), cap=timedelta(milliseconds=5))
FORMS = ["plain", "idempotent", "verify"]
"""What is done about an unknown outcome: nothing; the act again; ``verify``, which does the deed instead of the act."""


class Bare(NotDone):
    def __init__(self) -> None:
        """Nothing of what it should have."""


class BareRefusal(EffectRefused):
    def __str__(self) -> str:
        raise SystemExit("no text")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def never() -> Any:
    yield 1


class OddAwaitable:
    def __await__(self) -> Any:
        return 7


RAISED: dict[str, Callable[[], BaseException]] = {
    "NotDone": lambda: NotDone("not now"),
    "NotDone(unprintable)": lambda: NotDone(Unprintable()),
    "NotDone with an odd delay": lambda: NotDone("x", retry_after="soon"),  # type: ignore[arg-type]
    "NotDone without anything": Bare,
    "EffectRefused": lambda: EffectRefused("never"),
    "EffectRefused without a text": BareRefusal,
    "EffectRefused(odd text)": lambda: EffectRefused(OddText("odd")),
    "the class NotDone": NotDone,
}
RETURNED: dict[str, Callable[[], Any]] = {
    "no JSON": lambda: msgspec.Raw(b"{not json"),
    "a lone surrogate": lambda: "\ud800",
    "an escaped surrogate": lambda: msgspec.Raw(b'"\\ud800"'),
    "a NUL": lambda: {"a\x00": "b\x00"},
    "a huge number": lambda: 10**5000,
    "not a number": lambda: [float("nan"), float("inf")],
    "a number beyond every database": lambda: msgspec.Raw(b"1e999999"),
    "something deep": lambda: nested(50_000),
    "something deep for a database": lambda: nested(900),
    "something huge": lambda: "€" * 3_000_000,
    "an error": lambda: ValueError("x"),
    "a hostile object": ODD_ERRORS["has a hostile metaclass"],
    "itself": lambda: (lambda x: x.append(x) or x)([]),
    "a dict of odd keys": lambda: {object(): 1, None: 2},
    "Done": lambda: Done(Unprintable()),
    "Unknown": lambda: Unknown(Unprintable()),  # type: ignore[arg-type]
    "NotDone": NotDone,
    "an odd awaitable": OddAwaitable,
    "a function": lambda: never,
}


def raising(make: Callable[[], BaseException]) -> Deed:
    def act(_: Hand) -> None:
        raise make()

    return Deed(act, "held")


def returning(make: Callable[[], Any]) -> Deed:
    return Deed(lambda _: make(), "either")


def deeds(is_async: bool) -> dict[str, Deed]:
    """Those of handlers that need no transaction, and those of acts."""
    of_handlers = {
        name: deed
        for name, deed in DEEDS.items()
        if deed.needs <= ({"async"} if is_async else set()) and not name.startswith("returns a coroutine")
    }
    of_acts = {f"act raises {name}": raising(make) for name, make in RAISED.items()}
    return of_handlers | of_acts | {f"act returns {name}": returning(make) for name, make in RETURNED.items()}


@dataclass
class Acts:
    """An effect that does the deed its key names, and one that is ordinary. ``begun``: by key, how often an act began;
    ``through``: the acts that returned."""

    form: str
    is_async: bool
    store: Store
    begun: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    through: set[str] = field(default_factory=set)

    def effects(self) -> list[Effect]:
        registry = Registry()
        how: dict[str, Any] = {"timeout_s": 5, "retry": QUICK, "registry": registry}
        if self.form == "verify":
            how["verify"] = self._function(self.asked)
            hostile = effect("hostile", **how)(self._lost)
        else:
            hostile = effect("hostile", idempotent=self.form == "idempotent", **how)(self._function(self.begun))
        return [hostile, effect("ordinary", registry=registry)(self._ordinary)]

    def _lost(self, request: EffectRequest) -> None:
        self.begun[request.key] = self.begun.get(request.key, 0) + 1
        raise ConnectionResetError("no answer")

    def _ordinary(self, request: EffectRequest) -> str:
        self.begun["ordinary " + request.key] = self.begun.get("ordinary " + request.key, 0) + 1
        return "well"

    def _function(self, count: dict[str, int]) -> Any:
        all_deeds, hand = deeds(self.is_async), Hand(None, lambda _: None, lambda: None, self.is_async)

        def sync(request: EffectRequest) -> Any:
            count[request.key] = count.get(request.key, 0) + 1
            result = drive(all_deeds[request.key], hand)
            self.through.add(request.key)
            return result

        async def asynchronous(request: EffectRequest) -> Any:
            count[request.key] = count.get(request.key, 0) + 1
            result = await adrive(all_deeds[request.key], hand)
            self.through.add(request.key)
            return result

        return asynchronous if self.is_async else sync

    def over(self, rows: dict[str, tuple[str, int, int]]) -> bool:
        """Whether every hostile effect came to what it comes to; ``rows``: by key (state, attempts, asked)."""
        return all(self._settled(key, *row) for key, row in rows.items())

    def _settled(self, key: str, state: str, attempts: int, asked: int) -> bool:
        if state in ("done", "failed"):
            return True
        if self.form == "verify":
            return state == "unknown" and asked >= 2
        return state == "unknown" and attempts >= (2 if self.form == "idempotent" else 1)

    def faults(self, rows: list[tuple[str, str, int, str | None, str | None]]) -> list[str]:
        """What is not right, in words; ``rows``: (key, state, attempts, error_type, error)."""
        found = []
        for key, state, attempts, error_type, error in rows:
            right = deeds(self.is_async)[key].right
            begun = self.begun.get(key, 0)
            if begun != attempts:
                found.append(f"{key}: began {begun} times, and {attempts} attempts are written down")
            if begun > (1 if self.form == "plain" and "NotDone" not in key else QUICK.attempts):
                found.append(f"{key}: began {begun} times")
            if state != "done" and not (error_type and error is not None):
                found.append(f"{key}: {state} without a reason ({error_type!r}, {error!r})")
            if state == "done" and right == "held":
                found.append(f"{key}: done, and it was not")
            if state == "done" and key not in self.through:
                found.append(f"{key}: done, and it did not return")
            if state != "done" and right == "done" and self.form != "verify":
                found.append(f"{key}: {state} ({error_type}: {error}), and it was done")
            if state == "failed" and "NotDone" not in key and "EffectRefused" not in key:
                found.append(f"{key}: failed, though it may have been done")
            if state == "done" and self.form == "verify" and key != "act returns Done":
                found.append(f"{key}: done by a look that did not say so")
        return found


def names(is_async: bool) -> list[str]:
    return list(deeds(is_async))

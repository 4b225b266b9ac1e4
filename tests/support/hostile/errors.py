"""Errors whose own code raises, lies, or returns something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Panic(BaseException):
    """As pyo3 makes one of a Rust panic."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> str:
        return b"bytes"  # type: ignore[return-value]


class OddText(str):
    def replace(self, *_: Any) -> str:
        raise RuntimeError("not replaceable")

    __getitem__ = encode = replace  # type: ignore[assignment]


class SubclassedText(Exception):
    def __str__(self) -> str:
        return OddText("odd")


class Lying(Exception):
    @property
    def __class__(self) -> Any:
        raise ZeroDivisionError

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError

    @property
    def sqlstate(self) -> Any:
        raise ZeroDivisionError

    orig = pgcode = sqlite_errorcode = sqlstate


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise ZeroDivisionError(name)


class OfMeta(Exception, metaclass=Meta):
    pass


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class OddCode(Exception):
    sqlstate = OddText("X0000")
    sqlite_errorcode = True


def cycle() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


ODD_ERRORS: dict[str, Callable[[], BaseException]] = {
    "cannot be printed": Unprintable,
    "prints bytes": NoText,
    "prints a subclass of str": SubclassedText,
    "lies about its class": Lying,
    "has a hostile metaclass": OfMeta,
    "prints without end": Endless,
    "has odd codes": lambda: OddCode("x"),
    "caused itself": cycle,
    "has no module": type("Boom", (Exception,), {"__module__": None}),
    "has a number as its module": type("Boom", (Exception,), {"__module__": 7}),
    "has an odd module": type("Boom", (Exception,), {"__module__": OddText("odd")}),
    "has a long name": type("Q" * 3000, (Exception,), {}),
    "is dirty": lambda: ValueError("a\x00b\ud800\x1b[31m\nline"),
    "is huge": lambda: ValueError("€" * 5_000_000),
    "is a huge number": lambda: ValueError(10**5000),
    "has no arguments": ValueError,
    "has bytes": lambda: ValueError(b"\xff\xfe"),
    "holds one that cannot be printed": lambda: KeyError(Unprintable()),
    "is a group of such": lambda: BaseExceptionGroup("g", [Unprintable(), Lying(), OfMeta()]),
}

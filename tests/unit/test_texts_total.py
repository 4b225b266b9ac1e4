"""Booking a failure cannot fail: texts of errors whose own code raises, lies or returns something else."""

from __future__ import annotations

import sqlite3

import pytest

from relevo.clients.sqlstate import sqlite_codes, sqlstates
from relevo.errors import MisuseError
from relevo.runtime.texts import TEXT_BYTES_MAX, clean, describe
from relevo.total import name_of, text_of
from tests.support.hostile.errors import ODD_ERRORS, Lying, OddText, OfMeta, Unprintable

ODD = {name: make() for name, make in ODD_ERRORS.items()} | {
    "huge": ValueError("€" * 5_000_000),
    "huge number": ValueError(10**5000),
    "no arguments": ValueError(),
    "bytes": ValueError(b"\xff\xfe"),
    "group": BaseExceptionGroup("g", [Unprintable(), Lying(), ExceptionGroup("h", [OfMeta()])]),
    "key": KeyError(Unprintable()),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"),
}


@pytest.mark.parametrize("name", ODD)
def test_every_error_has_a_text(name: str) -> None:
    """Whatever an error's text, name, attributes and causes do."""
    error = ODD[name]
    try:
        raise error
    except BaseException as caught:
        texts = [*describe(caught), clean(caught), text_of(caught), *sqlstates(caught)]
        assert list(sqlite_codes(caught)) == []
    for text in texts:
        assert type(text) is str
    for text in texts[:3]:
        text.encode()
        assert "\x00" not in text
        assert len(text.encode()) <= TEXT_BYTES_MAX
    assert name_of(type(error)).rpartition(".")[2].encode("utf-8", "ignore")[:1].isalpha()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "None"),
        (404, "404"),
        (b"caf\xc3\xa9\xff", "café\\xff"),
        (KeyError("price"), "KeyError: 'price'"),
        (ValueError(), "ValueError"),
        (["a"], "['a']"),
        (OddText("odd"), "odd"),
    ],
    ids=["none", "number", "bytes", "error", "error without text", "list", "subclass of str"],
)
def test_what_is_no_text_is_made_one(given: object, text: str) -> None:
    made = clean(given)
    assert made == text
    assert type(made) is str


def test_a_group_says_what_is_in_it() -> None:
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no price"), KeyError("x")])
    assert "ValueError: no price; KeyError: 'x'" in describe(group)[1]


def test_codes_are_read_from_what_an_error_wraps() -> None:
    wrapped = sqlite3.OperationalError("locked")
    wrapped.sqlite_errorcode = sqlite3.SQLITE_BUSY | 0x100
    outer = RuntimeError("outer")
    outer.__cause__ = wrapped
    assert list(sqlite_codes(outer)) == [sqlite3.SQLITE_BUSY]


def test_a_misuse_names_the_line_of_the_reader_s_code_or_the_given_place() -> None:
    def commits() -> None:
        raise MisuseError("no")

    with pytest.raises(MisuseError) as caught:
        commits()
    place = describe(caught.value, "elsewhere")[0]
    assert place.startswith("relevo.errors.MisuseError at tests.unit.test_texts_total:")
    assert place.rpartition(":")[0].endswith("commits")
    assert int(place.rpartition(":")[2]) > 0
    assert describe(MisuseError("no"), "app:handler:7")[0] == "relevo.errors.MisuseError at app:handler:7"

    with pytest.raises(MisuseError) as caught:
        try:
            commits()
        except MisuseError as error:
            again = MisuseError("said again, without a frame of its own")
            again.__cause__, again.__traceback__ = error, None
        raise again.with_traceback(None)
    assert "commits" in describe(again.with_traceback(None))[0]

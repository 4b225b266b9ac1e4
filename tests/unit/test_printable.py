"""What strangers write reaches no terminal and no line-wise log as anything but visible characters."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from relevo.printable import json_text, printable, short


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;pwned\x07\x1b[2J", "\\x1b]0;pwned\\x07\\x1b[2J"),
        ("a\r2026-01-01T00:00:00Z info relevo: forged\n", "a\\r2026-01-01T00:00:00Z info relevo: forged\\n"),
        ("tab\tNUL\x00DEL\x7fVT\x0bFF\x0cBS\x08", "tab\\tNUL\\x00DEL\\x7fVT\\x0bFF\\x0cBS\\x08"),
        ("NEL\x85CSI\x9b31m", "NEL\\x85CSI\\x9b31m"),
        ("line\u2028paragraph\u2029", "line\\u2028paragraph\\u2029"),
        ("\u202egpj.exe\u2066x\u2069\u200e\u061c", "\\u202egpj.exe\\u2066x\\u2069\\u200e\\u061c"),
        ("pay\u200bpal\ufeff\u2060\u00ad\u180e", "pay\\u200bpal\\ufeff\\u2060\\xad\\u180e"),
        ("bi\u200dlling", "bi\\u200dlling"),
        ("\U000e0041\U000e007f", "\\U000e0041\\U000e007f"),
        ("\ud800x\udfff", "\\ud800x\\udfff"),
        ("\ufffe\U0010ffff\ue000", "\\ufffe\\U0010ffff\\ue000"),
        ("Zoë 東京 данные العربية", "Zoë 東京 данные العربية"),
        ("no\u00a0break\u3000wide", "no\u00a0break\u3000wide"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\U0001f469\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_escaped_and_text_of_any_script_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_every_code_point_is_visible_or_escaped() -> None:
    """All of Unicode, one by one: nothing comes through that is a control, a format character or no character."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        shown = printable(character)
        if shown == character:
            assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co"}, hex(code)
        else:
            assert shown.isascii() and shown.isprintable() and shown.startswith("\\"), hex(code)


def test_text_of_several_lines_keeps_its_lines_and_nothing_else() -> None:
    assert printable("a\tb\n\x1b[2Jc\r\n", lines=True) == "a\tb\n\\x1b[2Jc\\r\n"


def test_short_is_cut_and_says_so() -> None:
    assert short("x" * 10, 10) == "x" * 10
    assert short("x" * 11, 10) == "x" * 9 + "…"
    assert len(short("\x1b" * 100, 10)) == 10


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "value",
    [
        "\x1b[2J\x07\r\n\u2028\u202e\u200b\x9b",
        "\ud800 alone",
        {"\ud800": ["\udfff", 1, None, True, 1.5]},
        "\U000e0041\U0001f469",
        {"nested": {"deep": ["\x00", "\x7f"]}},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_lossless_and_printable(value: Any, indent: int | None) -> None:
    text = json_text(value, indent=indent)
    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n")) and (indent or "\n" not in text)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (float("nan"), None),
        ({1: "a"}, {"1": "a"}),
        (Path("a"), "a"),
        (b"\xff", "/w=="),
        (2**70, 2**70),
        (Broken(), "(a Broken without a text: RuntimeError)"),
        ({"\ud800": Broken()}, {"\ud800": "(a Broken without a text: RuntimeError)"}),
        ({"\ud800": {Path("b"): {3}, "f": float("inf")}}, {"\ud800": {"b": [3], "f": None}}),
    ],
)
def test_json_holds_anything(value: Any, read: Any) -> None:
    assert json.loads(json_text(value)) == read


def test_json_of_a_value_that_contains_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert json_text(loop)

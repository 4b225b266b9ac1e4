"""The reason of a held key is one line; all of it is kept beside it."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from relevo.consumer.shared import why
from relevo.outcome import RejectAsked
from relevo.runtime.texts import headline


class Order(BaseModel):
    number: int
    amount: int
    when: float


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one line", "one line"),
        ("", ""),
        ("first\nsecond", "first: second"),
        ("first:\n\n  second\nthird\n", "first: second: third"),
        ("a\nb\nc\nd\ne", "a: b: c (and 2 more lines)"),
        ("\n\n", ""),
    ],
)
def test_headline(text: str, line: str) -> None:
    assert headline(text) == line


def test_a_pydantic_error_of_many_lines_is_one_line_and_whole() -> None:
    with pytest.raises(ValidationError) as raised:
        Order.model_validate({"number": "seven", "amount": "x", "when": []})
    text = f"the payload cannot be decoded: {raised.value}"
    held = why(text, RejectAsked(text, "UndecodableError"))
    assert "\n" not in held.reason and held.reason.startswith("the payload cannot be decoded: 3 validation errors")
    assert "number" in held.reason and "more lines)" in held.reason
    assert held.error == text, "all of it is still shown as the error"

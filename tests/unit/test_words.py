"""Messages are sentences: one line, the right number and article, the field named once."""

from __future__ import annotations

import inspect

import pytest

from relevo import errors
from relevo.errors import RefusedError, RelevoError, UsageError
from relevo.ops import grants, importing
from relevo.ops.status_report import are, of


@pytest.mark.parametrize(
    "kind",
    [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, RelevoError)],
    ids=lambda kind: str(kind.__name__),
)
def test_the_default_text_of_an_error_is_one_line(kind: type[RelevoError]) -> None:
    """B16: a line break of a docstring is none of the sentence."""
    error = RelevoError.__new__(kind)
    RelevoError.__init__(error)
    assert str(error) and "\n" not in str(error) and "  " not in str(error)


@pytest.mark.parametrize(
    ("message", "path", "shown"),
    [
        ("after must be from 0 to 100 years", "after", "after must be from 0 to 100 years"),
        ("must be a string", "headers", "headers: must be a string"),
        ("no path", "", "no path"),
    ],
)
def test_the_field_is_named_once(message: str, path: str, shown: str) -> None:
    assert str(RefusedError(message, path=path)) == shown and RefusedError(message, path=path).path == path


def test_numbers_and_verbs_agree() -> None:
    assert (of(1, "key"), of(2, "key"), of(1_000, "key")) == ("1 key", "2 keys", "1,000 keys")
    assert (are(1, "key"), are(0, "key"), are(2, "key")) == ("1 key is", "0 keys are", "2 keys are")
    assert are(64, "lane", 1) == "64 lanes is", "the verb follows the first number: 1 of 64 lanes is free"


def test_articles() -> None:
    class Outbox: ...

    assert (importing._a(Outbox), importing._a(int), importing._a(dict)) == ("an Outbox", "an int", "a dict")


def test_one_word_for_a_role() -> None:
    with pytest.raises(UsageError, match=r"write ROLE:NAME, one of writer") as raised:
        grants.parse(["writer"])
    assert raised.value.exit_code == 2

"""What a statement would do to the transaction it runs in, read from its text.

A handler shares its transaction with Relevo's inbox row, and in a batch with other handlers. A statement that ends the
transaction is refused before it is sent. A statement that sets state of the transaction or session (``SET LOCAL``,
``SET ROLE``, ``set_config``, a temporary table, a lock of the session's) makes its handler run alone, since the state
would hold for the handlers behind it.

The text is split as PostgreSQL splits it: comments, strings, quoted names and dollar quotes are skipped, and every
statement of a text with several is looked at. What a function does is not in the text.
"""

from __future__ import annotations

import re
from enum import IntFlag
from functools import lru_cache
from typing import Final


class Does(IntFlag):
    """``ENDS``: begins, commits or rolls back the transaction (a savepoint does not). ``SETS``: sets state that holds
    until the end of the transaction, or longer. ``LASTS``: sets state that holds for the rest of the session."""

    NOTHING = 0
    ENDS = 1
    SETS = 2
    LASTS = 4


_SUSPICIOUS = re.compile(
    r"\b(?:commit|end|abort|rollback|begin|start|prepare|set|reset|discard|set_config"
    r"|listen|load|declare|temp|temporary|pg_(?:try_)?advisory_lock(?:_shared)?)\b",
    re.I,
)
_TOKEN = re.compile(
    r"""
      (?P<skip> \s+ | --[^\n]* | [eE]'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
              | \$(?P<tag>(?:[^\W\d]\w*)?)\$ .*? \$(?P=tag)\$ )
    | (?P<comment> /\*) | (?P<end> ;) | (?P<word> [^\W\d][\w$]*) | .
    """,
    re.X | re.S,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_HIDDEN_STATE = re.compile(r"set_config|\bset\s+(?:local|session|role)\b|\breset\b", re.I)
_WORDS_MAX: Final = 4
_WITHIN: Final = ("local", "transaction", "constraints")
"""What follows ``SET`` where the state ends with the transaction."""
_LOCKS: Final = frozenset(
    ("pg_advisory_lock", "pg_advisory_lock_shared", "pg_try_advisory_lock", "pg_try_advisory_lock_shared")
)
"""They hold until they are released, or the session ends; a handler that fails releases nothing."""
_TOLD: Final = frozenset(("set_config", "true", "false", "hold", "without", "drop", *_LOCKS))
"""Words that count wherever they stand."""


@lru_cache(maxsize=2048)
def what_it_does(query: str | bytes) -> Does:
    """What the statements of ``query`` do to the transaction, all of them together."""
    text = query if isinstance(query, str) else query.decode("utf-8", "replace")
    if _SUSPICIOUS.search(text) is None:
        return Does.NOTHING
    does = Does.NOTHING
    for words in _statements(text):
        does |= _of(words)
        if words and words[0] == "do" and _HIDDEN_STATE.search(text):
            does |= Does.SETS
    return does


def ends_transaction(query: str | bytes) -> bool:
    """Whether a statement of ``query`` begins, commits or rolls back a transaction, and is no savepoint."""
    return bool(what_it_does(query) & Does.ENDS)


def _statements(text: str) -> list[list[str]]:
    """The first words of each statement in lower case, and ``set_config`` wherever it is called."""
    found: list[list[str]] = [[]]
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            break
        place = token.end()
        if token.lastgroup == "comment":
            place = _behind_comment(text, place)
        elif token.lastgroup == "end":
            found.append([])
        elif token.lastgroup == "word":
            word = token["word"].lower()
            if word == "atomic" and found[-1][:1] == ["create"]:
                break  # the body of an SQL function: its END is no statement
            if len(found[-1]) < _WORDS_MAX or word in _TOLD:
                found[-1].append(word)
    return found


def _behind_comment(text: str, place: int) -> int:
    """Where a comment that began before ``place`` ends; comments nest."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, place)
        if edge is None:
            return len(text)
        depth += 1 if edge[0] == "/*" else -1
        place = edge.end()
    return place


def _of(words: list[str]) -> Does:
    does = Does.NOTHING
    if "set_config" in words:
        does |= Does.SETS if "true" in words and "false" not in words else Does.SETS | Does.LASTS
    if not _LOCKS.isdisjoint(words):
        does |= Does.SETS | Does.LASTS
    match words:
        case ["commit" | "end" | "abort" | "begin", *_] | ["start" | "prepare", "transaction", *_]:
            does |= Does.ENDS
        case ["rollback", "to", *_] | ["rollback", "work" | "transaction", "to", *_]:
            pass
        case ["rollback", *_]:
            does |= Does.ENDS
        case ["set", kind, *_]:
            does |= Does.SETS if kind in _WITHIN else Does.SETS | Does.LASTS
        case ["create", "temp" | "temporary", *_] | ["create", "local" | "global", "temp" | "temporary", *_]:
            does |= Does.SETS if "drop" in words else Does.SETS | Does.LASTS
        case ["create", "or", "replace", "temp" | "temporary", *_]:
            does |= Does.SETS | Does.LASTS
        case ["declare", *_] if "hold" in words and "without" not in words:
            does |= Does.SETS | Does.LASTS
        case ["prepare", *_]:
            does |= Does.SETS | Does.LASTS
        case ["reset" | "discard" | "listen" | "load", *_]:
            does |= Does.SETS | Does.LASTS
    return does

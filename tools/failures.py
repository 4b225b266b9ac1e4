"""The catalogue of failures, and which tests stand against each: told by ``FAILURES row N`` in a test's docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
PLACES = (REPO / "tests", REPO / "src" / "relevo" / "testing")

LATER = frozenset({*range(23, 29), *range(39, 45)})
"""Rows of parts that this version does not have."""

CATALOGUE: dict[str, dict[int, str]] = {
    "Reading the outbox": {
        1: "Ids 4 and 5 are taken, 5 commits first, the reader polls between: 4 is delivered",
        2: "A writer sleeps before its commit: its event arrives, nobody else's waits for it",
        3: "10,000 inserts rolled back, then one good one: delivered at once, reader state stays small",
        4: "The sequence has CACHE 10: refused, since it inverts a key's order",
        5: "The relay holds no transaction open while the broker is slow",
        6: "Another session is idle in transaction for an hour: delivery goes on, `status` names it",
        7: "Restored into a new cluster: noticed and said",
        8: "One message of a batch cannot be read: the others go on",
    },
    "Order and ownership": {
        9: "Many relays, one key: sorted; a failed message is retried before the next of its key",
        10: "1, 2, 3 of a key are sent together and 1 is refused: 2 and 3 are not let past it",
        11: "A relay frozen beyond its lease wakes up: its bookkeeping changes nothing",
        12: "A relay joins or leaves under load: no duplicate on a clean hand-over",
        13: "Somebody holds a row lock for a minute: other keys and relays go on",
        14: "Several relays start at once after a crash: each pending event goes out once",
        15: "Retries are exhausted: the key is parked, with reason and queue; `skip` lets the next pass",
    },
    "Brokers": {
        16: "The broker is away: nothing parked, nothing lost, attempts unchanged, drains in order",
        17: "One destination is down: the others flow, readiness shows it",
        18: "A destination that cannot take the message: rejected with the reason, never counted as sent",
        19: "Larger than the limit: refused at the append, with size and limit",
        20: "Odd headers, keys and payloads survive the round trip, distinct",
        21: "A broker that recognises a repeated id: that counts as delivered",
        22: "What is held stays byte for byte the original",
    },
    "WAL": {
        23: "Five rows in a transaction, crash after the third",
        24: "A batch limit smaller than a transaction, crash",
        25: "The outbox is idle while other tables write",
        26: "The slot is gone or lost",
        27: "A transaction of 1,000,000 rows",
        28: "Unknown messages in the stream",
    },
    "Inbox and handlers": {
        29: "The same id twice at the same time: one effect, no aborted transaction",
        30: "The handler writes, then raises: nothing of it remains",
        31: "The connection dies during COMMIT: the outcome is looked up",
        32: "Killed after the commit, before the acknowledgement: recognised, no second effect",
        33: "Killed inside the handler every time: parked after N attempts",
        34: "Errors in another language: classified by SQLSTATE",
        35: "An error text with a NUL, or of 1 MB: stored clean and cut",
        36: "The inbox is cleaned under load: no deadlock, nothing inside the window removed",
        37: "Not JSON, or of an unknown type: parked with that reason",
        38: "NUL, lone surrogates, NaN: refused at the append with the path",
    },
    "Sagas, projections, replay": {
        39: "One saga instance always fails",
        40: "A rebuild runs while live events come in",
        41: "A replay into a consumer that charges cards",
        42: "A reader asks for a version that does not exist yet",
        43: "Clocks apart: order and due times come from the database's clock",
        44: "A transaction pooler between relay and database",
    },
}

_MENTION = re.compile(r"FAILURES rows? (\d+(?:(?:, and |, | and |–|-)\d+)*)")


_PLACES = {
    "stack": "every stack",
    "consuming": "every stack",
    "pg_stack": "PostgreSQL with Kafka and with RabbitMQ",
    "store": "SQLite and PostgreSQL",
    "pg_store": "PostgreSQL",
    "pg_database": "PostgreSQL",
    "kafka_url": "Kafka",
    "rabbitmq_url": "RabbitMQ",
    "each_rabbitmq_url": "RabbitMQ",
}
"""What a fixture stands for; a stack is SQLite with the embedded broker, PostgreSQL with Kafka, or with RabbitMQ."""


def tests_by_row() -> dict[int, list[str]]:
    """Row to the ids of its tests, ``tests/…/file.py::name``, sorted."""
    return {row: sorted(tests) for row, tests in places_by_row().items()}


def places_by_row() -> dict[int, dict[str, str]]:
    """Row to its tests' ids, and for each where it runs, as far as its fixtures tell; else ``""``."""
    found: dict[int, dict[str, str]] = {}
    for place in PLACES:
        for file in sorted(place.rglob("*.py")):
            tree = ast.parse(file.read_text("utf-8"))
            fixtures = {node.name: node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)}
            for name, node in _tests(tree):
                for row in rows_in(ast.get_docstring(node) or ""):
                    found.setdefault(row, {})[f"{file.relative_to(REPO)}::{name}"] = _where(node, fixtures)
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _where(test: ast.FunctionDef | ast.AsyncFunctionDef, fixtures: dict[str, Any]) -> str:
    """By the fixtures it asks for, and those that they ask for in the same file."""
    seen: list[str] = []
    waiting = [test]
    while waiting:
        for argument in waiting.pop().args.args:
            if argument.arg not in seen:
                seen.append(argument.arg)
                if argument.arg in fixtures:
                    waiting.append(fixtures[argument.arg])
    words = list(dict.fromkeys(_PLACES[name] for name in _PLACES if name in seen))
    return words[0] if words and ("stack" in words[0] or "with" in words[0]) else ", ".join(words)


def rows_in(doc: str) -> set[int]:
    """The rows a docstring names, ranges included."""
    rows: set[int] = set()
    for mention in _MENTION.findall(doc):
        for part in re.split(r", and |, | and ", mention):
            first, last = re.fullmatch(r"(\d+)(?:[–-](\d+))?", part).groups()  # type: ignore[union-attr]
            rows.update(range(int(first), int(last or first) + 1))
    return rows


def _tests(tree: ast.Module | ast.ClassDef, inside: str = "") -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node, f"{inside}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{inside}{node.name}", node

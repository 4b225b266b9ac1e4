"""The tutorials, done as a reader does them: files written, commands typed, output compared."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.reader import Reader, matches


def test_first_steps(tmp_path: Path) -> None:
    """From nothing to one effect, on SQLite and the embedded broker; a relay is killed on the way."""
    with Reader(tmp_path) as reader:
        assert reader.follow(DOCS / "tutorials" / "first-steps.md") >= 12


@pytest.mark.xdist_group("heavy")
def test_postgres_and_kafka(pg_database: str, kafka_url: str, tmp_path: Path) -> None:
    """The same shop on servers; this run has a topic and a consumer of its own."""
    own = secrets.token_hex(4)
    replaced = {
        "postgresql://shop:secret@localhost/shop": pg_database,
        "kafka://localhost:9092": kafka_url,
        "shop.order": f"shop{own}.order",
        '"billing"': f'"billing{own}"',
    }
    with Reader(tmp_path, replaced) as reader:
        assert reader.follow(DOCS / "tutorials" / "postgres-and-kafka.md") >= 8


@pytest.mark.xdist_group("heavy")
def test_use_rabbitmq(pg_database: str, rabbitmq_url: str, tmp_path: Path) -> None:
    """The how-to about RabbitMQ: topics, then consumers, then the relay."""
    own = secrets.token_hex(4)
    replaced = {
        "postgresql://shop:secret@localhost/shop": pg_database,
        "amqp://shop:secret@localhost:5672/": rabbitmq_url,
        "shop.order": f"shop{own}.order",
        '"billing"': f'"billing{own}"',
    }
    with Reader(tmp_path, replaced) as reader:
        assert reader.follow(DOCS / "how-to" / "use-rabbitmq.md") >= 9


def test_no_broker(pg_database: str, tmp_path: Path) -> None:
    """One database is all there is: events, a consumer, chores, and the end of a group."""
    with Reader(tmp_path, {"postgresql://shop:secret@localhost/shop": pg_database}) as reader:
        assert reader.follow(DOCS / "how-to" / "no-broker.md") >= 9


@pytest.mark.parametrize(
    ("seen", "expected", "same"),
    [
        ("a 12 b\n", "a … b", True),
        ("a 12 b\nc\n", "a … b", False),
        ("first\nx\ny\nlast\n", "first\n…\nlast", True),
        ("first\nlast\n", "first\n…\nlast", True),
        ("first\nx\n", "first\n…\nlast", False),
    ],
)
def test_a_page_that_shows_something_else_is_noticed(seen: str, expected: str, same: bool) -> None:
    """The comparison itself: … is text within a line, or lines."""
    assert matches(seen, expected) is same


def test_test_your_code(tmp_path: Path) -> None:
    """The how-to about testing is a session of a reader, too: one test passes, the one that forgets an await fails."""
    with Reader(tmp_path) as reader:
        assert reader.follow(DOCS / "how-to" / "test-your-code.md") >= 5


@pytest.mark.parametrize("name", ["do-something-outside-once", "reprocess-yesterday"])
def test_effects_and_replay(name: str, tmp_path: Path) -> None:
    """Effects of every end, and yesterday again: everything typed works, and prints what the page shows."""
    with Reader(tmp_path) as reader:
        assert reader.follow(DOCS / "how-to" / f"{name}.md") >= 8


@pytest.mark.parametrize("name", ["a-message-keeps-failing", "we-changed-our-minds-about-a-parked-order"])
def test_parked_keys(name: str, tmp_path: Path) -> None:
    """An operator's sessions: everything typed works, and prints what the page shows."""
    with Reader(tmp_path) as reader:
        assert reader.follow(DOCS / "how-to" / f"{name}.md") >= 9


def test_pauses(tmp_path: Path) -> None:
    """Everything typed works, and prints what the page shows."""
    with Reader(tmp_path) as reader:
        assert reader.follow(DOCS / "how-to" / "pause-and-resume.md") >= 3


def test_retention(pg_database: str, tmp_path: Path) -> None:
    """Purges on SQLite, partitions on PostgreSQL: everything typed works, and prints what the page shows."""
    with Reader(tmp_path, {"postgresql://shop:secret@localhost/shop": pg_database}) as reader:
        assert reader.follow(DOCS / "how-to" / "keep-the-tables-small.md") >= 5


@pytest.mark.xdist_group("heavy")
def test_measure_your_own(tmp_path: Path) -> None:
    """A small bench on SQLite and the embedded broker: refused, foretold, done."""
    with Reader(tmp_path) as reader:
        assert reader.follow(DOCS / "how-to" / "measure-your-own.md") >= 4

"""`relevo source move` as people meet it."""

from __future__ import annotations

import json

from tests.support.cli import Cli


def test_a_move_is_shown_asked_for_done_and_in_the_books(relevo: Cli) -> None:
    """`--dry-run` changes nothing and says the steps on stdout; without `--yes` it asks; a second time there is nothing
    to do; settings from before the move go on working."""
    relevo("init", "--database", "sqlite:///shop.db", "--broker", "embedded:broker.db")
    relevo("migrate")
    dry = relevo("source", "move", "log", "--dry-run")
    assert dry.code == 0 and "change the source from 'mark' to 'log'" in dry.out
    assert "would" not in relevo("status").err and "source mark" in relevo("status").out
    assert relevo("source", "move", "log").code == 130, "nobody answered"
    assert "source mark" in relevo("status").out
    done = relevo("source", "move", "log", "--yes", "--actor", "me", "--reason", "latency")
    assert done.code == 0 and done.out == "" and "done: read by 'log'" in done.err
    assert "Set relay.source = 'log'" in done.err
    assert "source log" in relevo("status").out
    assert json.loads(relevo("status", "--output", "json").out)["source_move"] is None
    assert "nothing to do" in relevo("source", "move", "log", "--yes").err
    assert "up to date" in relevo("migrate").err
    assert "source.move" in relevo("jobs", "list").out


def test_what_cannot_be_moved_is_refused_in_plain_words(relevo: Cli) -> None:
    """`wal` as a target, a name that is no source, and tables that are not there."""
    relevo("init", "--database", "sqlite:///shop.db", "--broker", "embedded:broker.db")
    relevo("source", "move", "log", "--yes").refused(78, "relevo migrate")
    relevo("migrate")
    relevo("source", "move", "wal", "--yes").refused(78, "'wal'", "from 'mark' to 'log', or back")
    assert relevo("source", "move", "tail").code == 2

"""Log lines: one line per event, for people or machines, and no credentials in either."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.settings import LogSettings
from relevo.telemetry import logs
from relevo.telemetry.formats import JsonFormatter, TextFormatter


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the logs of this test go; the logging of the test run is as before afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("relevo")
    before = (list(root.handlers), root.level, ours.level)
    libraries = {name: logging.getLogger(name).level for name in logs.LIBRARIES}
    yield io.StringIO()
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    for name, each in libraries.items():
        logging.getLogger(name).setLevel(each)
    logging.captureWarnings(False)


def test_text_is_one_line_with_time_level_name_and_extra_fields(stream: io.StringIO) -> None:
    logs.configure(LogSettings(format="text"), stream=stream)
    logging.getLogger("relevo.relay").warning("paused %s\nnow", "shop", extra={"lanes": 3})
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z") and len(time) == len("2026-03-01T12:00:00.123Z")
    assert rest == "warning relevo.relay: paused shop\\nnow lanes=3\n"


def test_json_is_one_object_per_line_whatever_the_fields_hold(stream: io.StringIO) -> None:
    logs.configure(LogSettings(format="json"), stream=stream)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("relevo.relay").exception("it failed", extra={"path": Path("a"), "message_count": 2})
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"], record["message"]) == ("error", "relevo.relay", "it failed")
    assert record["trace"].startswith("Traceback") and record["path"] == "a" and record["message_count"] == 2


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_password_in_a_url_never_reaches_the_log(stream: io.StringIO, format: str) -> None:
    logs.configure(LogSettings(format=format), stream=stream)  # type: ignore[arg-type]
    try:
        raise OSError("cannot reach postgresql://shop:hunter2@db/shop")
    except OSError as error:
        logging.getLogger("relevo").exception("%s", error, extra={"url": "kafka://me:hunter2@broker:9092"})
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("***") >= 3


def test_levels(stream: io.StringIO) -> None:
    """Ours and the application's as configured, libraries that we use only when an operator must see it; a second call
    replaces the first."""
    logs.configure(LogSettings(level="error"), stream=stream)
    logs.configure(LogSettings(level="info"), stream=stream)
    logging.getLogger("relevo.relay").debug("no")
    logging.getLogger("relevo.relay").info("yes")
    logging.getLogger("shop.orders").info("yes too")
    logging.getLogger("shop.orders").debug("no")
    for library in logs.LIBRARIES:
        logging.getLogger(library).info("no")
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["yes", "yes too"]
    logging.getLogger("aiosqlite.core").warning("an operator must see it")
    assert "warning aiosqlite.core" in stream.getvalue()
    logs.configure(LogSettings(level="error"), debug=True, stream=stream)
    logging.getLogger("relevo.relay").debug("debug")
    assert "debug relevo.relay: debug" in stream.getvalue()


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_error_whose_text_cannot_be_made_is_a_line_all_the_same(stream: io.StringIO, format: str) -> None:
    logs.configure(LogSettings(format=format), stream=stream)  # type: ignore[arg-type]
    try:
        raise Hostile
    except Hostile:
        logging.getLogger("shop").exception("it failed")
    assert "it failed" in stream.getvalue() and "Hostile" in stream.getvalue()


def test_a_stack_trace_is_bounded_indented_and_forges_no_line() -> None:
    try:
        raise ValueError("x" * 100_000 + "\n2026-01-01T00:00:00.000Z info relevo: forged \x1b[2J\ud800")
    except ValueError as error:
        fields = {"msg": "it failed", "name": "shop", "exc_info": (type(error), error, error.__traceback__)}
        text = TextFormatter().format(logging.makeLogRecord(fields))
    assert len(text) < 25_000 and text.encode() and "\x1b" not in text
    assert [line for line in text.splitlines() if not line.startswith("  ")] == [text.splitlines()[0]]


def test_arguments_that_do_not_fit_lose_no_line() -> None:
    record = logging.makeLogRecord({"msg": "%d of %s", "args": ("one",), "name": "shop"})
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "%d of %s (its arguments do not fit" in formatter.format(record)

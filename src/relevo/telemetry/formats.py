"""One log record as one line of text, or as one JSON object. Credentials are taken out of both."""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Final

from relevo.printable import json_text, printable
from relevo.redacting import redact_text

TRACE_MAX: Final = 20_000
"""Characters of a stack trace."""
REPEATED_MIN: Final = 20
"""A field of more characters is left out of a text line whose message has it already."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """``2026-03-01T12:00:00.123Z warning relevo.relay: what happened name=value``; UTC.

    What is not printable is escaped, so that text of strangers neither moves a cursor nor begins a line: only a record
    begins at the margin, and a stack trace that follows it is indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower()} {printable(record.name)}: {printable(_message(record))}"
        for name, value in _extra(record).items():
            if not (isinstance(value, str) and len(value) > REPEATED_MIN and printable(value) in line):
                line += f" {printable(name)}={_field(value)}"
        for trace in _traces(record):
            line += "".join(f"\n  {printable(each)}" for each in trace.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One object per line: ``time``, ``level``, ``logger``, ``message``, ``trace`` if any, and extra fields by name.

    Text is what it was: JSON's own escapes stand for what a terminal must not get. An extra value that JSON cannot hold
    is written as its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        fields |= {name: value for name, value in _extra(record).items() if name not in fields}
        traces = _traces(record)
        if traces:
            fields["trace"] = "\n".join(traces)
        return json_text(fields)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - arguments that do not fit must not lose the line
        text = f"{record.msg!s} (its arguments do not fit: {type(error).__name__})"
    return _clean(text)


def _traces(record: logging.LogRecord) -> list[str]:
    traces = []
    if record.exc_info and record.exc_info[0] is not None:
        traces.append(trace_of(record.exc_info[1]))
    elif record.exc_text:
        traces.append(record.exc_text)
    if record.stack_info:
        traces.append(record.stack_info)
    return [_clean(trace).rstrip("\n") for trace in traces]


def trace_of(error: BaseException | None) -> str:
    """The stack trace, bounded: without its middle where it is very long. Never raises, even if the error does."""
    if error is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).rstrip("\n")
    except BaseException as failed:  # noqa: BLE001 - the error's own code runs here
        return f"(the stack trace of a {type(error).__name__} cannot be made: {type(failed).__name__})"
    if len(text) <= TRACE_MAX:
        return text
    half = TRACE_MAX // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _field(value: Any) -> str:
    """A field of a text line: quoted where a space would end it."""
    if not isinstance(value, str):
        return json_text(value)
    return json_text(value) if value == "" or " " in value or '"' in value else printable(value)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: _clean(value) if isinstance(value, str) else value
        for name, value in vars(record).items()
        if name not in _STANDARD and not name.startswith("_")
    }


def _clean(text: str) -> str:
    """The last line of defence: URLs are redacted where they are read, but a driver's text may quote one."""
    return redact_text(text)

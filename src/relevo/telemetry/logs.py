"""Log lines for operators, as text or JSON, on stderr. Levels and formats are ``[log]`` of the settings.

The library itself only logs to ``relevo.…`` loggers; handlers are set here, by the command line, and by nobody else.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

from relevo.settings import LogSettings

_CREDENTIALS: Final = re.compile(r"(://[^:/@\s]*):[^@/\s]+@")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """``2026-03-01T12:00:00.123Z warning relevo.relay: what happened``; UTC, extra fields as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower()} {record.name}: {_message(record)}"
        extra = " ".join(f"{name}={value}" for name, value in _extra(record).items())
        trace = _trace(self, record)
        return line + (f" {extra}" if extra else "") + (f"\n{trace}" if trace else "")


class JsonFormatter(logging.Formatter):
    """One object per line: ``time``, ``level``, ``logger``, ``message``, ``trace`` if any, and extra fields by name.

    An extra value that JSON cannot hold is written as its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        fields = _extra(record) | fields
        trace = _trace(self, record)
        if trace:
            fields["trace"] = trace
        return msgspec.json.encode(fields, enc_hook=str).decode("utf-8", "replace")


def configure(settings: LogSettings, *, debug: bool = False, stream: TextIO | None = None) -> None:
    """Send all logs to ``stream`` (stderr) in the configured format; ``debug`` overrides the level. Replaces the
    handlers of an earlier call, and no others."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    handler.set_name("relevo")
    root = logging.getLogger()
    for known in [each for each in root.handlers if each.get_name() == "relevo"]:
        root.removeHandler(known)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # of libraries: what an operator must see
    logging.getLogger("relevo").setLevel(logging.DEBUG if debug else settings.level.upper())


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return _clean(record.getMessage()).replace("\n", "\\n")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return _clean(formatter.formatException(record.exc_info)) if record.exc_info else ""


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: _clean(value) if isinstance(value, str) else value
        for name, value in vars(record).items()
        if name not in _STANDARD and not name.startswith("_")
    }


def _clean(text: str) -> str:
    """The last line of defence: URLs are redacted where they are read, but a driver's text may quote one."""
    return _CREDENTIALS.sub(r"\1:***@", text) if "://" in text else text

"""Log lines for operators, as text or JSON, on stderr. Levels and formats are ``[log]`` of the settings.

The library itself only logs to ``relevo.…`` loggers. Handlers are set by the command line alone, and an application
that configures logging while it is imported keeps its own.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, TextIO

from relevo.settings import LogSettings
from relevo.telemetry.formats import JsonFormatter, TextFormatter

LIBRARIES: Final = ("aio_pika", "aiormq", "aiosqlite", "asyncio", "asyncpg", "concurrent", "confluent_kafka", "psycopg")
"""What Relevo itself works with: warnings and errors only, unless ``--debug`` or the application says otherwise."""

log = logging.getLogger("relevo")
_json = _debug = _works = False
_set: dict[str, int] = {}
"""Levels of ``LIBRARIES`` that were set here."""


def configure(settings: LogSettings, *, debug: bool = False, stream: TextIO | None = None) -> None:
    """Send all logs to ``stream`` (stderr) in the configured format; ``debug`` overrides the level.

    The level holds for the application's loggers as well as for Relevo's, unless one has a level of its own. Warnings
    of the module ``warnings`` are log lines. Replaces the handler of an earlier call, and no other.
    """
    global _json, _debug
    _json, _debug = settings.format == "json", debug
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if _json else TextFormatter())
    handler.set_name("relevo")
    root = logging.getLogger()
    for known in [each for each in root.handlers if each.get_name() == "relevo"]:
        root.removeHandler(known)
    root.addHandler(handler)
    level = logging.DEBUG if debug else logging.getLevelNamesMapping()[settings.level.upper()]
    root.setLevel(level)
    log.setLevel(level)
    for name in LIBRARIES:
        library = logging.getLogger(name)
        if library.level in (logging.NOTSET, _set.get(name)):
            _set[name] = logging.NOTSET if debug else max(level, logging.WARNING)
            library.setLevel(_set[name])
    logging.captureWarnings(True)


@contextmanager
def application() -> Iterator[None]:
    """While an application is imported: it may configure logging as if it were alone, and then its handlers are used.

    Relevo's handler stands aside meanwhile, for what is logged without any. If the root logger has no handler at the
    end, Relevo's is used for the application too. Relevo's loggers are enabled again if ``dictConfig`` switched
    them off, and follow the root logger's level if the application configured it (with ``--debug`` they do not).
    """
    root = logging.getLogger()
    ours = next((each for each in root.handlers if each.get_name() == "relevo"), None)
    if ours is None:
        yield
        return
    last_resort, level = logging.lastResort, root.level
    root.removeHandler(ours)
    logging.lastResort = ours
    try:
        yield
    finally:
        logging.lastResort = last_resort
        _enable("relevo")
        if not root.handlers:
            root.addHandler(ours)
        elif not _debug and log.level == level:
            log.setLevel(logging.NOTSET)


def every_line() -> None:
    """For a process that works until it is stopped: errors that end it, or a thread of it, are log lines too."""
    global _works
    _works = True
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def is_json() -> bool:
    """Whether ``configure`` chose JSON, and the application did not choose anything else."""
    return _json and any(each.get_name() == "relevo" for each in logging.getLogger().handlers)


def works() -> bool:
    """Whether this process works until it is stopped, so that each of its lines is one of the log."""
    return _works


def say(level: int, message: str, **fields: Any) -> None:
    """A line that is written at every level: that a process is ready, why it ends."""
    record = log.makeRecord("relevo.cli", level, "", 0, message, (), None, extra=fields)
    for handler in logging.getLogger().handlers:
        handler.handle(record)


def _enable(name: str) -> None:
    for known, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and (known == name or known.startswith(f"{name}.")):
            logger.disabled = False


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("an error ended the process", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or isinstance(args.exc_value, SystemExit):
        return
    name = args.thread.name if args.thread is not None else "?"
    log.error("an error ended the thread %s", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _unraisable(args: Any) -> None:
    error = args.exc_value
    log.error(
        "%s: %r",
        *(args.err_msg or "an exception was ignored", args.object),
        exc_info=None if error is None else (args.exc_type, error, args.exc_traceback),
    )

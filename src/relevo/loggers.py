"""Relevo's loggers: a line that cannot be written never stops the work it is about.

The application's filters, handlers and record factories run inside the call that logs. What they raise ends here, with
a note on standard error, as ``logging`` itself does it for its own handlers.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

NAMES: Final = (
    *("relevo", "relevo.consumer", "relevo.relay", "relevo.effects", "relevo.outbox", "relevo.storage"),
    *("relevo.health", "relevo.database", "relevo.kafka.client", "relevo.brokers.embedded", "relevo.brokers.kafka"),
    *("relevo.brokers.postgres", "relevo.brokers.rabbitmq"),
)
"""All that the package logs to."""


def guard() -> None:
    """Let nothing that a filter, handler or record factory raises pass the loggers of ``NAMES``. Every package
    that logs calls it; ``import relevo`` alone does not load ``logging``."""
    for name in NAMES:
        own = vars(logging.getLogger(name))
        own["handle"] = partial(_handle, logging.getLogger(name))
        own["makeRecord"] = partial(_make, logging.getLogger(name))


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    _tried(logger, lambda: type(logger).handle(logger, record))


def _make(logger: logging.Logger, *arguments: Any, **options: Any) -> logging.LogRecord:
    made = _tried(logger, lambda: type(logger).makeRecord(logger, *arguments, **options))
    return made if isinstance(made, logging.LogRecord) else logging.LogRecord(*arguments[:7])


def _tried(logger: logging.Logger, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        if type(error) is KeyboardInterrupt and _is_ctrl_c():
            raise
        _note(logger.name, error)


def _is_ctrl_c() -> bool:
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _note(name: str, error: BaseException) -> None:
    """What failed, without the text of the line or of the error: either may be the cause."""
    try:
        kind = type.__dict__["__qualname__"].__get__(type(error))
        text = f"relevo: a line of the logger {name} was not written: the application's logging raised {kind}"
        sys.stderr.write(f"{text}\n")
    except BaseException:  # noqa: BLE001, S110 - standard error is closed
        pass

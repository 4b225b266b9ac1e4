"""Log lines that may come thousands of times a second: the first few of a group, then a count."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from relevo.printable import printable
from relevo.redacting import redact_text
from relevo.telemetry.formats import trace_of

WINDOW_S: Final = 10.0
"""How long the lines of one group are counted together."""
FIRST: Final = 5
"""Lines of one group that are written in a window before the others are only counted."""
GROUPS_MAX: Final = 1_000
"""Groups remembered. Of more, the oldest is closed early."""
TRACES_MAX: Final = 1_000
"""Groups whose stack trace is remembered as written."""

Fields = Mapping[str, Any]


@dataclass(slots=True)
class _Window:
    level: int
    what: str
    ends_at: float
    written: int = 0
    left_out: int = 0
    last: Fields = field(default_factory=dict)


class Often:
    """Lines of one logger, bounded by group. Thread-safe; keeps no thread, task or timer alive.

    A group's ``first`` lines in ``window_s`` seconds are written; the others are counted, and a line "… and 127
    more in the last 10 s" follows when the window ends, also when nothing else happens: a timer thread that does not
    keep the process alive looks at the windows that left something out. ``flush`` writes the counts at once.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
        first: int = FIRST,
        window_s: float = WINDOW_S,
    ) -> None:
        self._logger = logger
        self._first = first
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: OrderedDict[Hashable, _Window] = OrderedDict()
        self._traced: OrderedDict[Hashable, None] = OrderedDict()
        self._timer: threading.Timer | None = None
        _all.add(self)

    def log(
        self,
        level: int,
        group: Hashable,
        what: str,
        message: str,
        *args: object,
        extra: Fields | None = None,
        error: BaseException | None = None,
        error_group: Hashable = None,
    ) -> None:
        """Write ``message % args``, or count it.

        Args:
            group: what is counted together.
            what: the same in a few words, for the line with the count.
            extra: fields of the line. The count's line has those of the last line that was left out.
            error: its stack trace is written with the first line of ``error_group`` in this process's life.
        """
        if not self._logger.isEnabledFor(level):
            return
        with self._lock:
            ended = self._ended()
            window = self._windows.get(group)
            if window is None:
                window = self._windows[group] = _Window(level, what, self._clock() + self._window_s)
            write = window.written < self._first
            if write:
                window.written += 1
            else:
                window.left_out += 1
                window.last = extra or {}
                self._watch()
            traced = write and error is not None and self._first_trace(error_group)
        self._summarize(ended)
        if write:
            self._write(level, message, args, extra, error if traced else None)

    def _write(
        self, level: int, message: str, args: tuple[object, ...], extra: Fields | None, error: BaseException | None
    ) -> None:
        """With the stack trace as text that any handler can write: an error's text may hold anything."""
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        record = self._logger.makeRecord(
            *(self._logger.name, level, __file__, 0, message, args, exc_info), extra=dict(extra or {})
        )
        if error is not None:
            record.exc_text = printable(redact_text(trace_of(error)), lines=True)
        self._logger.handle(record)

    def flush(self) -> None:
        """Write the counts of all windows now."""
        with self._lock:
            windows, self._windows = list(self._windows.values()), OrderedDict()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._summarize(windows)

    def _first_trace(self, group: Hashable) -> bool:
        if group in self._traced:
            self._traced.move_to_end(group)
            return False
        self._traced[group] = None
        if len(self._traced) > TRACES_MAX:
            self._traced.popitem(last=False)
        return True

    def _ended(self) -> list[_Window]:
        """Take out the windows that are over, and what is too much."""
        now = self._clock()
        ended = []
        while self._windows:  # in the order in which they end
            first = next(iter(self._windows.values()))
            if first.ends_at > now and len(self._windows) < GROUPS_MAX:
                break
            ended.append(self._windows.popitem(last=False)[1])
        return ended

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._window_s, self._look)
            self._timer.name = "relevo-log-counts"
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer = None
            ended = self._ended()
            if any(each.left_out for each in self._windows.values()):
                self._watch()
        self._summarize(ended)

    def _summarize(self, windows: list[_Window]) -> None:
        for window in windows:
            if window.left_out:
                self._logger.log(
                    window.level,
                    "… and %s more in the last %.0f s: %s",
                    *(f"{window.left_out:,}", self._window_s, window.what),
                    extra={**window.last, "left_out": window.left_out},
                )


_all: weakref.WeakSet[Often] = weakref.WeakSet()


@atexit.register
def flush() -> None:
    """Write every count now: also when the process ends."""
    for each in list(_all):
        each.flush()

"""An append on an async handle that waits for its ``await``, and what happens when nobody awaits it (HARD 23)."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from relevo.errors import ForgottenAwaitWarning
from relevo.storage.handles import Site

T = TypeVar("T")
log = logging.getLogger("relevo.outbox")
_PACKAGE = str(Path(__file__).parent)

_lock = threading.Lock()
_open: dict[int, Site] = {}


class PendingAdd(Coroutine[Any, Any, T], Generic[T]):
    """What an async handle's ``add`` returns: await it (or make a task of it), once.

    It is a ``Coroutine``, so mypy (``unused-coroutine``) and pyright (``reportUnusedCoroutine``) flag a bare
    ``outbox.add(session, ...)``. Garbage-collected before it was started, it warns with ``ForgottenAwaitWarning``
    at the line of the call, and logs an error.
    """

    __slots__ = ("__weakref__", "_coroutine", "_start", "site")

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]], site: Site) -> None:
        self._start = start
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self.site = site
        with _lock:
            _open[id(site)] = site

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        return self._begin().send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None) -> Any:
        return self._begin().throw(typ if val is None else val)

    def close(self) -> None:
        self._seen()
        if self._coroutine is not None:
            self._coroutine.close()

    def _begin(self) -> Coroutine[Any, Any, T]:
        self._seen()
        if self._coroutine is None:
            self._coroutine = self._start()
        return self._coroutine

    def _seen(self) -> None:
        self.site.awaited = True
        with _lock:
            _open.pop(id(self.site), None)

    def __repr__(self) -> str:
        return f"<{self.site}{'' if self.site.awaited else ', not awaited'}>"

    def __del__(self) -> None:
        site: Site | None = getattr(self, "site", None)
        if site is None or site.awaited or sys.is_finalizing():
            return
        log.error("%s was never awaited: its event was NOT written. Write `await outbox.add(...)`", site)
        warnings.warn_explicit(
            f"{site} was never awaited: its event was NOT written. Write `await outbox.add(...)`",
            ForgottenAwaitWarning,
            site.file,
            site.line,
            source=self,
        )


def unawaited() -> list[Site]:
    """Appends of this process that were asked for and not awaited so far, forgotten ones included."""
    with _lock:
        return list(_open.values())


def forget(sites: list[Site]) -> None:
    """Take these off the list of un-awaited ones: somebody has been told."""
    with _lock:
        for site in sites:
            _open.pop(id(site), None)


def call_site(what: str) -> Site:
    """The nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Site(what, frame.f_code.co_filename, frame.f_lineno)

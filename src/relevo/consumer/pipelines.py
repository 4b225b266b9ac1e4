"""Which handlers run without a pipeline, since they failed in one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from relevo.consumer.handlers import Handler

STRIKES = 3
"""Failures in a row after which a handler is tried without one."""
REST = 200
"""Batches without one, before it is tried again: whatever failed may have had nothing to do with it."""


class Pipelines:
    """For one consumer."""

    def __init__(self) -> None:
        self.without: dict[Handler, float] = {}
        """And for how many batches."""
        self._strikes: dict[Handler, int] = {}

    def worked(self, pipelined: bool, handlers: Iterable[Handler | None]) -> None:
        if pipelined:
            self._strikes.clear()
            return
        for handler in handlers if self.without else ():
            if handler in self.without:
                self.without[handler] -= 1
                if self.without[handler] <= 0:
                    del self.without[handler]

    def failed(self, handlers: Collection[Handler | None], *, known: bool) -> list[Handler]:
        """``known``: it is certain that it was the pipeline. Returns those that have none from now on."""
        out = []
        for handler in handlers:
            if handler is None:
                continue
            self._strikes[handler] = self._strikes.get(handler, 0) + 1
            if known or self._strikes[handler] >= STRIKES:
                del self._strikes[handler]
                self.without[handler] = float("inf") if known else REST
                out.append(handler)
        return out

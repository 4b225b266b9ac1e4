"""What became of the commits of a member's positions."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from relevo.bounds import ANSWER_S

log = logging.getLogger("relevo.brokers.kafka")

TOLD_S: Final = 30.0
"""The same reason for a failed commit is logged again after so long."""


class Commits:
    """Of one member, on one event loop. Commits fail for a moment while a group is shared out anew. What failed is
    asked for again."""

    def __init__(self, group: str) -> None:
        self.error: str | None = None
        """Of the last answer; ``None``: it was a success, or there was none."""
        self.answered = asyncio.Event()
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._failing_since = 0.0
        self._told = ("", 0.0)

    @property
    def problem(self) -> str | None:
        """Why no commit has worked for as long as an answer may take: what is settled would be delivered again."""
        failing_s = self._loop.time() - self._failing_since
        if self.error is None or failing_s < ANSWER_S:
            return None
        return (
            f"positions have not been committed for {failing_s:.0f} s ({self.error}): "
            "messages that are settled would be delivered again"
        )

    def answer(self, error: str | None) -> None:
        if error is not None:
            if self.error is None:
                self._failing_since = self._loop.time()
            self._tell_once(error)
        self.error = error
        self.answered.set()

    def _tell_once(self, error: str) -> None:
        """One line for what happens to every partition, and again with every try, while a group is being shared out."""
        told, at = self._told
        if error != told or self._loop.time() - at > TOLD_S:
            self._told = (error, self._loop.time())
            log.warning("group %s: positions were not committed (%s). Trying again", self._group, error)

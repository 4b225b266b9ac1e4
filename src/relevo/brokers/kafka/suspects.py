"""Messages that were in a batch the broker refused."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from relevo.outcome import PublishOutcome, Rejected
from relevo.outgoing import Sendable

REMEMBERED_S: Final = 60.0
"""Then they have gone elsewhere (another relay, a person), and batches are filled again."""


class Suspects:
    """A broker refuses a batch as a whole and does not say which record it meant. While there are suspects, messages
    are sent one in a batch; who is accepted, or refused by itself, is no suspect any more."""

    def __init__(self) -> None:
        self._ids: set[UUID] = set()
        self._until = 0.0

    @property
    def some(self) -> bool:
        if self._ids and time.monotonic() > self._until:
            self._ids.clear()
        return bool(self._ids)

    def add(self, message: Sendable) -> None:
        self._ids.add(message.event_id)
        self._until = time.monotonic() + REMEMBERED_S

    def cleared(self, messages: Sequence[Sendable], outcomes: Mapping[int, PublishOutcome]) -> None:
        """Learn from the outcomes of a call; an index that is missing was accepted."""
        for index, message in enumerate(messages):
            if index not in outcomes or isinstance(outcomes[index], Rejected):
                self._ids.discard(message.event_id)

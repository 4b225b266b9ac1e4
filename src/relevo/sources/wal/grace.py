"""How long a message whose topic cannot be sent to now may keep the stream from going on.

A short outage is waited out: nothing is written. A longer one may not hold up other topics, nor the slot, which keeps
all WAL from its position on; then messages are handed out to be held in the table until their topic is available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from relevo.sources.wal.window import Page

OTHERS_WAIT_S = 2.0
"""While other topics could go on."""
ALL_WAIT_S = 30.0
"""While every topic seen so far is unavailable: nobody is kept waiting."""
TOPICS_MAX = 10_000


@dataclass
class Grace:
    """For one stream. ``seconds``: a monotonic clock."""

    others_wait_s: float = OTHERS_WAIT_S
    all_wait_s: float = ALL_WAIT_S
    seconds: Callable[[], float] = time.monotonic
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _seen: set[str] = field(default_factory=set, init=False)

    @property
    def waiting(self) -> bool:
        """Whether some topic was unavailable the last time."""
        return bool(self._since)

    def passable(self, page: Page, without: Collection[str]) -> tuple[Sequence[int], float | None]:
        """Indexes of ``page`` that are handed out now, and the seconds until the rest is, if they are cut short."""
        now = self.seconds()
        self._since = {topic: self._since.get(topic, now) for topic in without}
        if len(self._seen) < TOPICS_MAX:
            self._seen.update(message.topic for message in page.messages)
        limit_s = self.others_wait_s if self._seen - self._since.keys() else self.all_wait_s
        blocked = {topic: since + limit_s - now for topic, since in self._since.items() if since + limit_s > now}
        if not blocked:
            return page.open, None
        for place, index in enumerate(page.open):
            topic = page.messages[index].topic
            if topic in blocked:
                return page.open[:place], blocked[topic]
        return page.open, None

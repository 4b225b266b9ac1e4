"""When each kind of work last succeeded: readiness judges by the age of a success, not by the last error."""

from __future__ import annotations

from collections.abc import Mapping

from relevo.runtime.clock import SYSTEM, Clock


class Pulse:
    """One per engine; every loop says ``beat`` when a turn of it succeeded. Costs one dictionary entry.

    Work that is not always there also says when there is some (``begin``) and when there is none (``rest``): a process
    without anything to publish is not sick because it published nothing.
    """

    __slots__ = ("_at", "_seconds", "_since")

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._seconds = clock.seconds
        self._at: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def beat(self, name: str) -> None:
        """``name`` succeeded just now."""
        self._at[name] = now = self._seconds()
        if name in self._since:
            self._since[name] = now

    def begin(self, *names: str) -> None:
        """There is something to do for each of ``names``, from now on if there was not before."""
        for name in names:
            if name not in self._since:
                self._since[name] = self._seconds()

    def rest(self, name: str) -> None:
        """There is nothing to do for ``name``."""
        self._since.pop(name, None)

    def waits_s(self, name: str) -> float | None:
        """Seconds for which there has been something to do and nothing succeeded; ``None``: there is nothing to do."""
        since = self._since.get(name)
        return None if since is None else max(0.0, self._seconds() - since)

    def age_s(self, name: str) -> float | None:
        """Seconds since ``name`` last succeeded; ``None``: it never did."""
        at = self._at.get(name)
        return None if at is None else max(0.0, self._seconds() - at)

    def ages(self) -> Mapping[str, float]:
        """Of all that ever succeeded."""
        now = self._seconds()
        return {name: max(0.0, now - at) for name, at in self._at.items()}

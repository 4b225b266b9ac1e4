"""Scripts for what is paused, so that ``status`` sees it from any process."""

from __future__ import annotations

from relevo.script import Script, Statement


def pause(topic: str, reason: str) -> Script[None]:
    """Record that ``topic`` is paused; the time since when stays if it was already."""
    yield Statement("destinations.pause", {"topic": topic, "reason": reason})


def resume(topic: str) -> Script[None]:
    yield Statement("destinations.resume", {"topic": topic})

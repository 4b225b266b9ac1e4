"""Scripts for what is paused, so that ``status`` sees it from any process."""

from __future__ import annotations

from uuid import UUID

from relevo.script import Script, Statement


def pause(process_id: UUID, topic: str, reason: str) -> Script[None]:
    """Record that this process takes nothing for ``topic``; the time since when stays if it did so already."""
    yield Statement("destinations.pause", {"process_id": process_id, "topic": topic, "reason": reason})


def resume(process_id: UUID, topic: str) -> Script[None]:
    yield Statement("destinations.resume", {"process_id": process_id, "topic": topic})

"""What members of a group share where Relevo itself keeps who reads what: the embedded broker, and PostgreSQL alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from relevo.errors import RelevoError
from relevo.ports.broker import Revoked
from relevo.total import name_of


def failed(error: Exception, group: str, parts: str, log: logging.Logger) -> str:
    """Log why a turn of a member's upkeep failed, and return it for health. ``parts``: what the group shares out."""
    if isinstance(error, RelevoError):
        log.warning("group %s: %s. Trying again; if it lasts, others take its %s over", group, error, parts)
        return str(error)
    log.error("group %s: a callback or Relevo itself failed. Going on", group, exc_info=error)
    return f"an error of Relevo or of a callback ({name_of(type(error))}), see the log"


async def let_finish(
    revoked: Revoked | None, names: Sequence[str], lease_s: float, group: str, parts: str, log: logging.Logger
) -> None:
    """Let the consumer finish its work on ``names``, for half a lease at most. Raises nothing but a cancellation."""
    if revoked is None:
        return
    try:
        async with asyncio.timeout(lease_s / 2):
            await revoked(names)
    except TimeoutError:
        log.warning("group %s: work in flight did not end in time and will be repeated elsewhere", group)
    except Exception:
        log.exception("group %s: the callback for revoked %s failed", group, parts)

"""What a relay's log tells of messages that were not simply published: held, parked, skipped, or sent again.

Lines of one topic and reason are bounded (``telemetry.often``). They have no payload and no headers. Destinations
that are paused or blocked are logged where that is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from relevo.ports.source import Disposition
from relevo.printable import short
from relevo.storage.marking import PAUSED
from relevo.telemetry.fields import REASON_MAX, TEXT_MAX, of_message
from relevo.telemetry.often import Often

log = logging.getLogger("relevo.relay")
often: Final = Often(log)


def settled(messages: Sequence[Any], dispositions: Mapping[int, Disposition]) -> None:
    """What became of a page that did not go through clean, once it is settled."""
    for index, fate in dispositions.items():
        message = messages[index]
        if fate.action == "hold" and fate.code != PAUSED:
            parked(message, fate.reason, fate.code)
        elif fate.action == "skip":
            skipped(message, fate.reason, fate.code)
        elif fate.action == "back" and fate.reason:
            again(message, fate.reason)


def parked(message: Any, reason: str, code: str) -> None:
    """The broker refused ``message``, or it cannot be read: what comes later of its key waits behind it."""
    look = f"relevo parked show --side relay --id {message.event_id}"
    often.log(
        logging.ERROR,
        ("parked", message.topic, code),
        f"messages of {short(message.topic, TEXT_MAX)} parked ({code}); see relevo parked list --side relay --group",
        "relay: %s is parked, and later messages of its key wait: %s. Look at it: %s",
        *(message.event_id, _brief(reason), look),
        extra={**_fields(message, reason), "error": code, "command": look},
    )


def skipped(message: Any, reason: str, code: str) -> None:
    """The broker refused ``message``, and the policy of its destination says to go on without it."""
    often.log(
        logging.ERROR,
        ("skipped", message.topic, code),
        f"messages of {short(message.topic, TEXT_MAX)} skipped ({code})",
        "relay: %s is skipped, as on_rejected says, and is not sent: %s",
        *(message.event_id, _brief(reason)),
        extra={**_fields(message, reason), "error": code},
    )


def again(message: Any, reason: str) -> None:
    """It is not known whether the broker has ``message``, or its topic takes nothing now: it is sent again."""
    often.log(
        logging.WARNING,
        ("again", message.topic, reason),
        f"messages of {short(message.topic, TEXT_MAX)} not confirmed: {_brief(reason)}",
        "relay: %s is not confirmed and is sent again: %s",
        *(message.event_id, _brief(reason)),
        extra=_fields(message, reason),
    )


def _brief(reason: str) -> str:
    return short(reason, REASON_MAX)


def _fields(message: Any, reason: str) -> dict[str, Any]:
    return {**of_message(message), "reason": _brief(reason)}

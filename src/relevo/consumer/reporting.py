"""What a consumer's log tells of messages that do not go well: an attempt that failed, one that is parked or skipped.

A line has what an operator needs as fields: id, type, topic and key of the message, the attempt, the error and its
place. It has no payload and no headers. Lines of one kind of error are bounded (``telemetry.often``); its stack trace
is written once per process.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from relevo.message import Message
from relevo.outcome import Failed, RejectAsked
from relevo.printable import short
from relevo.runtime.texts import headline
from relevo.telemetry.fields import REASON_MAX, of_message, shown_key
from relevo.telemetry.often import Often

log = logging.getLogger("relevo.consumer")
often: Final = Often(log)

_REMEMBERED: Final = 1_000


class Reports:
    """Of one consumer. Called on its event loop; a call costs nothing for what goes well."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._raised: dict[Any, BaseException] = {}

    def raised(self, message: Message, error: BaseException) -> None:
        """The handler of ``message`` raised ``error``: its stack trace belongs to the next line about the message."""
        if len(self._raised) >= _REMEMBERED:
            self._raised.clear()
        self._raised[message.event_id] = error

    def again(self, message: Message, outcome: object, reason: str, *, attempt: int, of: int, next_s: float) -> None:
        """Attempt ``attempt`` failed, and there is another one ``next_s`` seconds from now."""
        kind, fields = self._fields(message, outcome, reason)
        often.log(
            logging.WARNING,
            (self._consumer, "again", kind),
            f"failed attempts of consumer {self._consumer}, {kind}",
            "consumer %s: attempt %d of %d failed, next try in %.2f s: %s",
            *(self._consumer, attempt, of, next_s, fields["reason"]),
            extra={**fields, "attempt": attempt, "attempts_max": of, "next_try_s": round(next_s, 3)},
            error=self._raised.pop(message.event_id, None),
            error_group=kind,
        )

    def conflict(self, message: Message, reason: str) -> None:
        """Two transactions met, and this one runs again; no attempt was spent."""
        self._raised.pop(message.event_id, None)
        log.debug("consumer %s: %s runs again after a conflict: %s", self._consumer, message.event_id, reason)

    def parked(self, message: Message, outcome: object, reason: str, *, attempts: int, letter: bool) -> None:
        """An operator has to look at ``message``; what comes later of its key waits behind it. ``letter``: whether a
        dead letter was written with it."""
        kind, fields = self._fields(message, outcome, reason)
        look = f"relevo parked show --consumer {self._consumer} --id {message.event_id}"
        often.log(
            logging.ERROR,
            (self._consumer, "parked", kind),
            f"messages parked by consumer {self._consumer}, {kind}; see relevo parked list --group",
            "consumer %s: %s is parked%s, and later messages of its key wait: %s%s. Look at it: %s",
            *(self._consumer, message.event_id, _after(attempts), fields["reason"]),
            *(". A dead letter was written" if letter else "", look),
            extra={**fields, "attempt": attempts, "dead_letter": letter, "command": look},
            error=self._raised.pop(message.event_id, None),
            error_group=kind,
        )

    def skipped(self, message: Message, outcome: object, reason: str, *, attempts: int, letter: bool) -> None:
        """It was given up, as ``on_rejected`` says, and its key goes on."""
        kind, fields = self._fields(message, outcome, reason)
        often.log(
            logging.ERROR,
            (self._consumer, "skipped", kind),
            f"messages skipped by consumer {self._consumer}, {kind}",
            "consumer %s: %s is skipped, as on_rejected says: %s%s",
            *(self._consumer, message.event_id, fields["reason"], ". A dead letter was written" if letter else ""),
            extra={**fields, "attempt": attempts, "dead_letter": letter},
            error=self._raised.pop(message.event_id, None),
            error_group=kind,
        )

    def suspect(self, message: Message, attempts: int) -> None:
        """An earlier owner took ``message`` and never settled it: it runs alone in this process."""
        often.log(
            logging.WARNING,
            (self._consumer, "suspect"),
            f"messages that an earlier process of consumer {self._consumer} left unsettled",
            "consumer %s: an earlier process took %s and did not settle it, so it runs alone now",
            *(self._consumer, message.event_id),
            extra={**self._of(message), "attempt": attempts},
        )

    def lost(self, topic: str, key: bytes) -> None:
        """Another process drains the key by now."""
        often.log(
            logging.WARNING,
            (self._consumer, "lost"),
            f"held keys that consumer {self._consumer} lost to another process",
            "consumer %s: another process drains a held key by now; it goes on there",
            self._consumer,
            extra={"consumer": self._consumer, "topic": topic, "key": shown_key(key)},
        )

    def _fields(self, message: Message, outcome: object, reason: str) -> tuple[str, dict[str, Any]]:
        """The kind of error, as ``relevo parked list --group`` has it, and the fields of the line."""
        kind = outcome.error_type if isinstance(outcome, Failed | RejectAsked) else ""
        kind = kind or type(outcome).__name__
        name, _, place = kind.partition(" at ")
        fields = self._of(message) | {"error": name, "place": place, "reason": short(headline(reason), REASON_MAX)}
        return kind, {field: value for field, value in fields.items() if value != ""}

    def _of(self, message: Message) -> dict[str, Any]:
        return {"consumer": self._consumer, **of_message(message)}


def _after(attempts: int) -> str:
    return f" after {attempts} failed attempt{'' if attempts == 1 else 's'}" if attempts else ""

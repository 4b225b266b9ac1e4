"""What the log tells of effects that were not done: tried again, failed for good, or of unknown outcome.

Lines of one effect and kind of error are bounded (``telemetry.often``). They do not have the effect's data.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

from relevo.printable import short
from relevo.runtime.texts import headline
from relevo.storage.effecting import Claim
from relevo.telemetry.fields import REASON_MAX, TEXT_MAX
from relevo.telemetry.often import Often

log = logging.getLogger("relevo.effects")
often: Final = Often(log)


class Outcome(Protocol):
    """What is written down of one act."""

    @property
    def state(self) -> str: ...

    @property
    def error_type(self) -> str | None: ...

    @property
    def error(self) -> str | None: ...

    @property
    def delay_s(self) -> float: ...


def settled(claim: Claim, outcome: Outcome, attempts_max: int) -> None:
    """It is written down that the act was not done: it is tried again, or it failed for good."""
    reason, kind = _brief(outcome.error or ""), outcome.error_type or ""
    if outcome.state == "pending":
        often.log(
            logging.WARNING,
            ("again", claim.name, kind),
            f"acts of effect {claim.name} that were not done ({kind})",
            "effect %s/%s was not done, next attempt in %.1f s: %s: %s",
            *(claim.name, claim.key, outcome.delay_s, kind, reason),
            extra={**_fields(claim, kind), "attempts_max": attempts_max, "next_try_s": round(outcome.delay_s, 3)},
        )
    elif outcome.state == "failed":
        look = f"relevo effects show {claim.effect_id}"
        often.log(
            logging.ERROR,
            ("failed", claim.name, kind),
            f"effects {claim.name} that failed ({kind}); see relevo effects list --state failed",
            "effect %s/%s failed for good: %s: %s. Look at it: %s",
            *(claim.name, claim.key, kind, reason, look),
            extra={**_fields(claim, kind), "attempts_max": attempts_max, "command": look},
        )


def unknown(claim: Claim, kind: str, text: str, *, by_itself: bool) -> None:
    """Whether the act was done is not known; ``by_itself``: it is asked about or sent again without an operator."""
    resolve = f"relevo effects resolve {claim.effect_id}"
    often.log(
        logging.WARNING if by_itself else logging.ERROR,
        ("unknown", claim.name, kind, by_itself),
        f"effects {claim.name} of unknown outcome ({kind})",
        "effect %s/%s: whether it was done is not known (%s: %s). %s",
        *(claim.name, claim.key, kind, _brief(text)),
        "It is looked at again" if by_itself else f"It waits: {resolve}",
        extra=_fields(claim, kind) | ({} if by_itself else {"command": resolve}),
    )


def _brief(text: str) -> str:
    return short(headline(text), REASON_MAX)


def _fields(claim: Claim, kind: str) -> dict[str, Any]:
    return {
        "effect": short(claim.name, TEXT_MAX),
        "effect_id": claim.effect_id,
        "key": short(claim.key, TEXT_MAX),
        "event_id": None if claim.event_id is None else str(claim.event_id),
        "consumer": claim.consumer,
        "error": kind,
    }

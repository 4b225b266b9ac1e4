"""What each of RabbitMQ's errors means for a message. Data, by the client's exception types, which stand for AMQP's
reply codes; the docs print it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from relevo.outcome import PublishOutcome, Rejected, Unavailable, Unconfirmed

OF_ONE: Final[Mapping[str, str]] = {
    "ChannelAccessRefused": "not_authorised",
    "ChannelPreconditionFailed": "precondition_failed",
}
"""403 and 406: the server refuses a message by closing the channel and does not say which message it meant. So this is
*rejected* for a message that was under way alone; for others *unconfirmed*, and they go again one by one."""

NOT_SENT: Final = frozenset({"ChannelInvalidStateError"})
"""The client had no open channel to write to."""

ROWS: Final[tuple[tuple[str, str, str], ...]] = (
    ("rejected, `unroutable`", "`basic.return` (`PublishError`)", "no queue is bound; never counted as sent"),
    ("rejected, `unknown_topic`", "404 on a passive declare (`ChannelNotFoundEntity`)", "asked before sending"),
    ("rejected, `message_too_large`", "`broker.options.message_bytes_max`", "checked before sending"),
    *((f"rejected, `{code}`", f"`{name}`", "when under way alone, else unconfirmed") for name, code in OF_ONE.items()),
    ("unavailable", "`basic.nack` (`DeliveryError`)", "a queue is full (`reject-publish`) or its leader is away"),
    ("unavailable", ", ".join(f"`{name}`" for name in sorted(NOT_SENT)), "nothing was written"),
    ("unavailable", "no connection: `AMQPConnectionError`, `OSError`, time-out", "nothing was written"),
    ("unconfirmed", "connection or channel lost, no confirm within `relay.send_timeout_s`", "every other error"),
)


def classify(error: BaseException | None, *, alone: bool) -> PublishOutcome:
    """The outcome of a message whose publishing ended in ``error``; ``None`` or a cancellation: it was cut off.

    ``alone``: nothing else was under way on the channel.
    """
    if error is None or isinstance(error, asyncio.CancelledError):
        return Unconfirmed("the connection was lost before the confirm")
    names = [kind.__name__ for kind in type(error).__mro__]
    name = names[0]
    if "PublishError" in names:
        return Rejected("unroutable", "no queue takes it: no consumer has subscribed to this topic yet")
    if "DeliveryError" in names:
        return Unavailable("basic.nack: a queue refused it (it is full, or its leader is away)")
    if alone and name in OF_ONE:
        return Rejected(OF_ONE[name], f"{name}: the server closed the channel on this message")
    if name in NOT_SENT:
        return Unavailable(f"{name}: there was no open channel")
    return Unconfirmed(f"{name}: no confirm came")


def table() -> str:
    """Markdown, for the reference."""
    rows = ["| outcome | RabbitMQ | when |", "|---|---|---|"]
    rows.extend(f"| {outcome} | {what} | {when} |" for outcome, what, when in ROWS)
    return "\n".join(rows) + "\n"

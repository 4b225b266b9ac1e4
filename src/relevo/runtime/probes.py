"""Named points where a test or the demo may kill, freeze or cut off this very process, for real.

``RELEVO_PROBE="relay.confirmed=kill:3"`` sends SIGKILL to the process at the third visit of that point,
``=freeze:1`` SIGSTOP, ``=cut:1`` shuts down all its TCP connections. Without the variable a probe costs one comparison.
A test that kills can so prove that it killed in the section it meant.

The part of a name before its dot says who passes the point: ``part_of``. The crash matrix
(``tests/faults/test_crash_matrix.py``) has a row for every point here, and fails for one that no scenario reaches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Literal, TypeAlias

from relevo.errors import ConfigError

Action: TypeAlias = Literal["kill", "freeze", "cut"]
ACTIONS: tuple[Action, ...] = ("kill", "freeze", "cut")

KNOWN = {
    "relay.taken": "a page was read, nothing is sent",
    "relay.sending": "just before the page is handed to the broker",
    "relay.confirmed": "the broker confirmed, nothing is settled",
    "relay.settled": "the page is settled",
    "relay.acquired": "lanes were acquired",
    "relay.released": "lanes were given back",
    "relay.draining": "keys to be drained are claimed, nothing is sent",
    "relay.drain_sent": "the broker confirmed drained messages, nothing is removed",
    "relay.drained": "drained messages are removed, keys without any are live",
    "parked.stepping": "an operator's job changed some keys, nothing is committed",
    "parked.stepped": "a step of an operator's job is committed",
    "parked.published": "dead letters are confirmed, their originals still held",
    "parked.moved": "dead letters are confirmed and left their queue",
    "parked.brought_back": "dead letters are queued again, not settled at the broker",
    "letters.published": "dead letters of a consumer are confirmed, not removed from the table",
    "letters.settled": "dead letters of a consumer are published and removed",
    "consumer.taken": "deliveries were taken, nothing is written",
    "consumer.journaled": "the batch stands in the journal",
    "consumer.began": "the inbox row is written, the handler has not run",
    "consumer.handled": "the handler returned, nothing is committed",
    "consumer.committed": "committed, not acknowledged",
    "consumer.settled": "acknowledged",
    "consumer.held": "a message went to its key's queue",
    "consumer.drained": "a held message was worked off",
    "effect.claimed": "an effect is claimed, nothing is sent",
    "effect.sent": "an effect is marked as sent, the act has not begun",
    "effect.acted": "the act is done, its result is not stored",
    "effect.recorded": "the result of an effect is stored",
    "replay.ran": "a page of a replay was handled, its position is not stored",
    "replay.stored": "the position of a replay is stored",
    "consumer.stored": "a durable handler's message is in the table, not acknowledged",
    "purge.batch": "a batch of old rows is gone and committed",
    "purge.partition": "a partition of the outbox is cut or dropped, not committed",
    "source.prepared": "a move between sources built an index or set a page of markers",
    "source.held": "no relay reads: a move copied a page of messages, or set a page of markers",
    "source.closed": "relays were asked to let go of their lanes for a move",
    "source.switching": "the source is changed, not committed",
    "source.switched": "the source is changed, the old one's index or slot is still there",
    "source.tidied": "a move out of `wal` is about to drop the slot",
    "mover.inserted": "scheduled messages are in the outbox, not committed",
    "mover.committed": "scheduled messages were moved and committed",
}

_SAID = {"kill": "SIGKILL", "freeze": "SIGSTOP", "cut": "CUT"}
_DRAINING = ("relay.draining", "relay.drain_sent", "relay.drained")


def part_of(name: str) -> str:
    """Which part of the system passes the point: ``relay``, ``consumer``, ``redrive`` (the relay, when an operator
    freed keys), ``effect``, ``mover``, …"""
    return "redrive" if name in _DRAINING else name.partition(".")[0]


def _armed(text: str | None) -> dict[str, tuple[str, int]]:
    armed: dict[str, tuple[str, int]] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, action = part.partition("=")
        verb, _, visit = action.partition(":")
        if name not in KNOWN or verb not in ACTIONS or not (visit or "1").isdigit():
            raise ConfigError(
                f"RELEVO_PROBE={part!r} is not understood: write POINT=kill:N, POINT=freeze:N or POINT=cut:N, with a "
                f"point of {', '.join(sorted(KNOWN))}"
            )
        armed[name] = (verb, int(visit or 1))
    return armed


_points = _armed(os.environ.get("RELEVO_PROBE"))
_visits: dict[str, int] = {}
_lock = threading.Lock()


def probe(name: str) -> None:
    """Pass the point ``name``, one of ``KNOWN``. From any thread."""
    if _points:
        _visit(name)


def _visit(name: str) -> None:
    if name not in _points:
        return
    action, at = _points[name]
    with _lock:  # handlers pass it in several threads; one of them is the Nth
        visit = _visits[name] = _visits.get(name, 0) + 1
    if visit == at:
        print(f"probe {name}: {_SAID[action]}", file=sys.stderr, flush=True)  # noqa: T201 - proof for whoever armed it
        _act(action)


def _act(action: str) -> None:
    if action == "cut":
        from relevo.runtime.cutting import cut_connections

        print(f"cut {cut_connections()} connections", file=sys.stderr, flush=True)  # noqa: T201
    else:
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)

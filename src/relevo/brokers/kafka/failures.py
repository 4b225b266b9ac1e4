"""Which messages the failed delivery reports are about. Pure.

A report carries topic, key and payload, not our index: an object per message that would carry it costs a quarter of
everything that handing the message over costs. So the few that fail are found by what they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from relevo.outgoing import Sendable

Likeness = tuple[str, bytes | None, bytes]


class Failure(NamedTuple):
    """One failed report. ``name`` and ``text`` are the client's error."""

    topic: str
    key: bytes | None
    payload: bytes | None
    name: str
    text: str


def locate(
    messages: Sequence[Sendable], failures: Sequence[Failure], without: Container[int]
) -> Iterator[tuple[int, Failure]]:
    """The index of each failure among ``messages``; ``without``: indexes that were never handed to the client.

    Messages that are alike in topic, key and payload: of one key the last ones failed, since nothing of a key is
    accepted behind one that is not. Without a key nobody can tell, so all of them count as failed: what was delivered
    after all comes twice, nothing is lost.
    """
    wanted: dict[Likeness, list[Failure]] = {}
    for failure in failures:
        wanted.setdefault(_likeness(failure.topic, failure.key, failure.payload), []).append(failure)
    alike: dict[Likeness, list[int]] = {}
    for index, message in enumerate(messages):
        likeness = _likeness(message.topic, message.key, message.payload)
        if likeness in wanted and index not in without:
            alike.setdefault(likeness, []).append(index)
    for likeness, found in wanted.items():
        indexes = alike.get(likeness, [])
        if likeness[1] is None:
            yield from ((index, found[min(place, len(found) - 1)]) for place, index in enumerate(indexes))
        else:
            yield from zip(indexes[-len(found) :], found, strict=False)


def _likeness(topic: str, key: bytes | None, payload: bytes | None) -> Likeness:
    """The client does not keep an empty key or payload apart from none."""
    return topic, key or None, payload or b""

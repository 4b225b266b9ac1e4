"""Handing one page to the broker, so that nothing of a key passes what was not accepted.

A prefix-safe publisher gets the whole page at once. Any other gets it in waves: the first message of every key, then
the second of every key, and so on; a key whose message was not accepted sends nothing more of this page. So it has one
unconfirmed message per key, and pipelines over keys.

Before every send, so also between waves, the lease is looked at: a relay that stood still in the middle of a page would
otherwise go on with it while the next owner is still behind it in the same page, and be the first with later messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relevo.outcome import PublishOutcome, Unconfirmed
from relevo.outgoing import Sendable
from relevo.ports.broker import Publisher

BEHIND = Unconfirmed("not sent: an earlier message of its key was not accepted")
LEASE_OVER = Unconfirmed("not sent: the lease on its lane is nearly over")


async def send(
    publisher: Publisher, messages: Sequence[Sendable], may_send: Callable[[], bool] = lambda: True
) -> Mapping[int, PublishOutcome]:
    """Outcomes by index, as ``Publisher.publish`` gives them, prefix-safe whatever the publisher is. Nothing
    more is sent once ``may_send`` says no."""
    if not messages:
        return {}
    if publisher.capabilities.prefix_safe:
        return await publisher.publish(messages) if may_send() else dict.fromkeys(range(len(messages)), LEASE_OVER)
    outcomes: dict[int, PublishOutcome] = {}
    stopped: set[tuple[str, bytes]] = set()
    for wave in waves(messages):
        indexes = []
        for index in wave:
            message = messages[index]
            if message.key is not None and (message.topic, message.key) in stopped:
                outcomes[index] = BEHIND
            else:
                indexes.append(index)
        if not indexes:
            continue
        if not may_send():
            outcomes |= dict.fromkeys(indexes, LEASE_OVER)
            stopped |= {(messages[index].topic, key) for index in indexes if (key := messages[index].key) is not None}
            continue
        found = await publisher.publish([messages[index] for index in indexes])
        for position, outcome in found.items():
            message = messages[indexes[position]]
            outcomes[indexes[position]] = outcome
            if message.key is not None:
                stopped.add((message.topic, message.key))
    return dict(sorted(outcomes.items()))


def waves(messages: Sequence[Sendable]) -> list[list[int]]:
    """Indexes of ``messages`` in waves with at most one message of a key each; keyless ones all go in the first."""
    found: list[list[int]] = []
    depth: dict[tuple[str, bytes], int] = {}
    for index, message in enumerate(messages):
        level = 0
        if message.key is not None:
            name = (message.topic, message.key)
            level = depth.get(name, 0)
            depth[name] = level + 1
        if level == len(found):
            found.append([])
        found[level].append(index)
    return found

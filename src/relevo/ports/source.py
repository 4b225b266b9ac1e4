"""The source port: how the relay reads the outbox and moves past what was handed over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from relevo.outgoing import Sendable


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """``lanes``: owned lane by lane, many relays at once. ``history``: settled messages can be read again. ``leaves``:
    what may not be sent can be left unsettled for as long as it takes. Without it ``without_topics`` is a wish: after a
    while such messages are handed out all the same, to be held. ``company_s``: seconds from one look to the next at
    least, where the last one found all there was: what comes meanwhile goes together."""

    lanes: bool
    history: bool
    leaves: bool = True
    company_s: float = 0.002


@dataclass(frozen=True, slots=True)
class Taken:
    """One page of unsettled messages, parallel lists in ``seq`` order. ``exhausted``: nothing further was there.
    ``unreadable``: index → why that row could not be read; its message is a stand-in with topic and key, never sent.
    """

    seqs: Sequence[int]
    lanes: Sequence[int]
    messages: Sequence[Sendable]
    exhausted: bool
    unreadable: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seqs)


@dataclass(frozen=True, slots=True)
class Disposition:
    """What becomes of one taken message that was *not* simply published.

    ``hold``: a complete copy goes to its key's queue, in the transaction that moves past it. ``behind``: like hold, but
    only because its key was already held; if the key turns out to be live under the lock, the message stays unsettled.
    ``skip``: moved past by policy. ``back``: untouched, taken again later.
    """

    action: Literal["hold", "behind", "skip", "back"]
    reason: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """``lost``: lanes that turned out not to be ours; nothing of theirs was settled. ``live``: (topic, held key)
    thought held and found live; their messages are taken again."""

    count: int
    lost: Collection[int]
    live: Collection[tuple[str, bytes]]


class Source(Protocol):
    """Reads the outbox for one relay process. Not for use by two tasks at once, except that ``take`` and ``settle`` may
    overlap. All methods raise ``UnreachableError`` when the database does not answer; nothing is lost by it."""

    @property
    def capabilities(self) -> SourceCapabilities: ...

    async def assign(self, lanes: Mapping[int, int]) -> None:
        """From now on read these lanes (lane → epoch), and no others. Forgets positions of lanes that are new."""

    async def take(self, max_messages: int, max_bytes: int, *, without_topics: Collection[str] = ()) -> Taken:
        """The next page of unsettled messages of the assigned lanes in ``seq`` order, after the page taken last; starts
        over at the oldest unsettled one when the last page was exhausted. Never returns a row twice while it is in
        flight. A lane whose epoch is not ours any more yields nothing."""

    async def settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        """Move past ``taken``: an index that is not in ``dispositions`` was published. One transaction, which locks the
        lane rows and checks their epochs first. After an error nothing is settled and ``taken`` will be taken again."""

    async def settle_all(self, pages: Sequence[Taken]) -> Settled:
        """Move past ``pages``, in the order they were read: every message was published. Otherwise as ``settle``."""

    async def release(self, taken: Taken) -> None:
        """Forget that ``taken`` is in flight without settling it."""

    async def aclose(self) -> None: ...

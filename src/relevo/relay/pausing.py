"""What people paused, as one relay engine sees it: looked at about once a second, honoured from the next page on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from relevo.ports.source import Disposition
from relevo.relay.dispositions import KeyName, Verdict
from relevo.storage.marking import PAUSED
from relevo.storage.pausing import NONE, REASON, Pauses


@dataclass
class RelayPauses:
    """``keys``: (topic, key) of the relay's side. Only the owner of a key's lane holds it, with the first message that
    comes; what comes later queues behind, and the drain works it off when the pause is gone."""

    now: Pauses = NONE
    keys: frozenset[KeyName] = field(default=frozenset(), init=False)

    def take(self, pauses: Pauses) -> bool:
        """Follow ``pauses``; whether anything changed."""
        if {each.target for each in pauses.all} == {each.target for each in self.now.all}:
            return False
        self.now = pauses
        self.keys = frozenset((topic, key) for consumer, topic, key in pauses.keys if not consumer)
        return True

    def hold(
        self, verdict: Verdict, behind: Mapping[int, KeyName], held: Collection[KeyName], aside: Collection[int] = ()
    ) -> None:
        """Of the messages that were not sent, make the keys held that are paused and still live, and those of
        ``aside``: what the source cannot leave where it is."""
        if not self.keys and not aside:
            return
        for index, name in behind.items():
            if (name in self.keys or index in aside) and name not in held and name not in verdict.held:
                verdict.dispositions[index] = Disposition("hold", REASON, PAUSED)
                verdict.held.add(name)

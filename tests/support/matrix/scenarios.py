"""How to reach the points of each part. A new point of a part listed here needs nothing but its scenario to pass it.

A scenario says which process is armed (``role``) and has *steps*, tried one after the other until the point is hit:
each makes the system do more. Points that want another visit than the first, or a scenario of their own, say so here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tests.support.ledger.child import Child
from tests.support.matrix.system import System

Hit = Callable[[], bool]


@dataclass
class Scenario:
    """One run. ``armed``: the probe for the process of ``role``; ``hit``: whether it met it."""

    system: System
    probe: str
    hit: Hit = field(default=lambda: False)

    role: ClassVar[str] = "relay"
    repeats: ClassVar[bool] = False
    """Whether a fault of this process may repeat what was with the broker."""
    acts: ClassVar[bool] = False
    after_s: ClassVar[float | None] = None

    def prepare(self) -> None:
        """Before any process is started."""
        self.system.open_topic()

    def others(self) -> Sequence[str]:
        """Roles that run beside the armed process, healthy."""
        return ["consumer"]

    def arm(self) -> Child:
        return self.system.start(self.role, self.probe)

    def steps(self) -> Sequence[Callable[[], None]]:
        return [self.system.write]

    def again(self) -> Child:
        """The armed process once more, healthy: after a kill, or in place of one that is frozen."""
        return self.system.start(self.role)

    def finish(self) -> None:
        """After the fault: more of the same, so that the system must go on and not only clean up."""
        self.system.write(20)

    def done(self) -> bool:
        """Beside the ledger itself."""
        return self.system.unsettled() == 0

    def check(self) -> None:
        """Beside the ledger itself, at the end."""


class RelayScenario(Scenario):
    repeats = True

    def steps(self) -> Sequence[Callable[[], None]]:
        return [self.system.write, self._second_relay]

    def _second_relay(self) -> None:
        """Lanes change hands."""
        self.system.start("relay")
        self.system.write(20)


class ConsumerScenario(Scenario):
    """``app.SICK`` is told to come later: its messages pass through the key's queue."""

    role = "consumer"

    def others(self) -> Sequence[str]:
        return ["relay"]


class MoverScenario(Scenario):
    """Every event is scheduled, and due a moment later."""

    repeats = True
    after_s = 0.2

    def done(self) -> bool:
        return self.system.unsettled() == 0 and self.system.count("relevo_scheduled") == 0


class EffectScenario(Scenario):
    """Each change is followed by an outward act, performed by a process of its own."""

    role = "effects"
    acts = True

    def others(self) -> Sequence[str]:
        return ["relay", "consumer"]

    def done(self) -> bool:
        return self.system.count("ledger_act") >= self.system.count("ledger_change") and not self._open()

    def _open(self) -> int:
        return self.system.count("relevo_effect where state <> 'done'")

    def check(self) -> None:
        """Exactly one act for each change, and each is known to be done."""
        acts = self.system.query("select event_id from ledger_act order by 1")
        assert acts == self.system.query("select event_id from ledger_change order by 1")


class RedriveScenario(Scenario):
    """The topic is missing: every key parks at the relay. Then it is there, and an operator frees the keys."""

    repeats = True

    def prepare(self) -> None:
        self.system.stack.options.update(MISSING_TOPIC.get(self.system.stack.name, {}))

    def others(self) -> Sequence[str]:
        return []

    def steps(self) -> Sequence[Callable[[], None]]:
        return [self._park, self._free, self._free]

    def _park(self) -> None:
        system = self.system
        system.write()
        system.wait(lambda: system.unsettled() == 0, "everything is parked at the relay")
        assert system.count("relevo_held_key where state = 'parked'") > 0
        system.open_topic()
        system.start("consumer")

    def _free(self) -> None:
        self.system.do(FREE)

    def finish(self) -> None:
        self.system.write(20)

    def done(self) -> bool:
        if self.system.count("relevo_held_key where state = 'parked'"):
            self._free()  # the broker still said that the topic is missing; an operator tries again
        return self.system.unsettled() == 0 and self.system.count("relevo_held_key") == 0


FREE = (
    "update relevo_held_key set state = 'draining', due_at = null, attempts = 0, holder = null where state = 'parked'"
)
MISSING_TOPIC = {"sqlite-embedded": {"auto_create": False}}
"""Options with which a stack rejects what goes to a topic that is missing."""

PARTS: dict[str, type[Scenario]] = {
    "relay": RelayScenario,
    "consumer": ConsumerScenario,
    "redrive": RedriveScenario,
    "effect": EffectScenario,
    "mover": MoverScenario,
}
"""Part of a point's name → its scenario."""

POINTS: dict[str, type[Scenario]] = {}
"""Points that their part's scenario does not reach."""

VISITS = {
    "relay.taken": 3,
    "relay.sending": 3,
    "relay.confirmed": 3,
    "relay.settled": 3,
    "consumer.taken": 2,
    "consumer.journaled": 2,
    "consumer.began": 5,
    "consumer.handled": 5,
    "consumer.committed": 5,
    "consumer.settled": 5,
    "consumer.held": 2,
    "consumer.drained": 2,
    "effect.claimed": 3,
    "effect.sent": 3,
    "effect.acted": 3,
    "effect.recorded": 3,
}
"""Where something else than the first visit tells more: pages are in flight then."""


def scenario_for(point: str, part: str) -> type[Scenario]:
    found = POINTS.get(point) or PARTS.get(part)
    if found is None:
        raise AssertionError(
            f"{point}: no scenario reaches the part {part!r}. Add a Scenario for it to PARTS (or to POINTS, for this "
            "point alone) in tests/support/matrix/scenarios.py: which process is armed, and the steps that lead there"
        )
    return found

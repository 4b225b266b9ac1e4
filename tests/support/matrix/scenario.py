"""What a scenario is: which process is armed, and the steps that lead to its points."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.support.ledger.child import Child
from tests.support.matrix.system import System

Hit = Callable[[], bool]


@dataclass
class Scenario:
    """One run. ``probe``: for the process of ``role``; ``hit``: whether it met it. ``steps`` are tried one after
    the other until it does: each makes the system do more."""

    system: System
    probe: str
    hit: Hit = field(default=lambda: False)

    role: ClassVar[str] = "relay"
    repeats: ClassVar[bool] = False
    """Whether a fault of this process may repeat what was with the broker."""
    after_s: ClassVar[float | None] = None
    switches: ClassVar[Collection[str]] = ()
    """Of the application, ``app``: ``ACTS``, ``BAD``, ``DURABLE``."""
    settings: ClassVar[str] = ""
    """More of ``relevo.toml``."""
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """More options of the broker, by stack."""
    step_s: ClassVar[float] = 15.0
    """How long a step may take to lead to the point before the next one is tried; the last one has longer."""
    command: ClassVar[bool] = False
    """The armed process is a command with an end: when its connections are cut it may fail, and is run again."""

    def prepare(self) -> None:
        """Before any process is started."""
        self.system.open_topic()

    def others(self) -> Sequence[str]:
        """Roles that run beside the armed process, healthy."""
        return ["consumer"]

    def before(self) -> None:
        """When the others run, before the armed process is started."""

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

    def check_acts(self) -> None:
        """One act for each change. A process that is frozen in the middle of an act goes on with it when it wakes up,
        and nobody can know it meanwhile: then it is the idempotency key, the same for both, that makes it one."""
        distinct = "distinct " if "=freeze:" in self.probe else ""
        acts = self.system.query(f"select {distinct}event_id, idempotency_key from ledger_act order by 1")
        assert [act[:1] for act in acts] == self.system.query("select event_id from ledger_change order by 1")

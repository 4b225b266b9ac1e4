"""A repair of everything, beside the live consumer; the command is what is hit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.support.ledger.child import Child
from tests.support.matrix.scenario import Scenario

COMMAND = ["replay", "--consumer", "tests.support.matrix.app:books", "--yes"]


class ReplayScenario(Scenario):
    """Every message runs again and records its outward act again, under the key it had: no act happens twice."""

    switches = ("ACTS",)
    command = True

    def others(self) -> Sequence[str]:
        return ["relay", "consumer", "effects"]

    def before(self) -> None:
        self.system.write()
        self.system.wait(lambda: self.system.account().holds and self.done(), "everything was handled once")

    def arm(self) -> Child:
        arguments = [*COMMAND, "--mode", "repair", "--from-seq", "1", "--why", "a defect"]
        self._armed = self.system.run("operator", arguments, self.probe)
        return self._armed

    def steps(self) -> Sequence[Callable[[], None]]:
        return [lambda: None]

    def again(self) -> Child:
        """Resumed; refused for as long as the one that is gone may still come back."""
        found = re.search(r"^replay (\S+)$", self._armed.log.read_text("utf-8", "replace"), re.MULTILINE)
        assert found is not None, self._armed.tail()
        last: list[Child] = []

        def resumed() -> bool:
            child = self.system.run("operator", [*COMMAND, "--resume", found[1]])
            last.append(child)
            assert child.process is not None
            return child.process.wait(60) == 0

        self.system.wait(resumed, "the replay is resumed and ends", 60)
        return last[-1]

    def done(self) -> bool:
        changes = self.system.count("ledger_change")
        acted = self.system.count("ledger_act") >= changes and not self.system.count(
            "relevo_effect where state <> 'done'"
        )
        return acted and self.system.unsettled() == 0

    def check(self) -> None:
        """All that there was has been replayed, and each act was done once."""
        replayed = "ledger_change c where exists (select 1 from ledger_replayed r where r.event_id = c.event_id)"
        first = self.system.count("ledger_change")
        assert 0 < self.system.count(replayed) < first  # not what was written afterwards
        self.check_acts()

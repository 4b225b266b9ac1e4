"""Scenarios in which keys are parked, freed, or moved to dead letters and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tests.support.ledger.child import Child
from tests.support.matrix.scenario import Scenario

REDRIVE = ["parked", "redrive", "--all", "--yes"]


class RedriveScenario(Scenario):
    """The topic is missing: every key parks at the relay. Then it is there, and an operator frees the keys."""

    repeats = True
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {"sqlite-embedded": {"auto_create": False}}

    def prepare(self) -> None: ...

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
        self._free()

    def _free(self) -> None:
        if self.system.count("relevo_held_key where state = 'parked'"):
            self.system.complete(REDRIVE)

    def done(self) -> bool:
        self._free()  # if the broker still said that the topic is missing, an operator tries again
        return self.system.unsettled() == 0 and self.system.count("relevo_held_key") == 0


class OperatorScenario(Scenario):
    """Some keys are parked at the consumer; the handler is fixed; the operator's command is what is hit."""

    switches = ("BAD",)
    command = True

    def others(self) -> Sequence[str]:
        return ["relay", "consumer"]

    def before(self) -> None:
        system = self.system
        system.write()
        system.wait(self._all_parked, "the bad keys are parked, the others are done")
        assert system.count("relevo_held_key where state = 'parked'") > 1
        system.do("insert into ledger_fixed values (1)")

    def _all_parked(self) -> bool:
        system = self.system
        held = system.count("relevo_held_message") + system.count("ledger_effect")
        return system.unsettled() == 0 and held == system.count("ledger_change")

    def arguments(self) -> list[str]:
        return REDRIVE

    def arm(self) -> Child:
        return self.system.run("operator", self.arguments(), self.probe)

    def steps(self) -> Sequence[Callable[[], None]]:
        return [lambda: None]

    def again(self) -> Child:
        return self.system.complete(self.arguments())

    def done(self) -> bool:
        return self.system.count("relevo_held_key") == 0


class PublishScenario(OperatorScenario):
    """To the dead letters; afterwards they are brought back."""

    def before(self) -> None:
        super().before()
        self.system.open_topic(f"books.{self.system.stack.topic}.dlq", ["relevo-from-dlq"])

    def arguments(self) -> list[str]:
        return ["parked", "publish", "--to-dlq", "--all", "--yes"]

    def finish(self) -> None:
        """Back before anything else is written: what arrives for a key meanwhile would be handled first."""
        system = self.system
        system.wait(lambda: system.count("relevo_held_key") == 0, "all are dead letters")
        system.complete(self.back())
        system.wait(lambda: system.account().holds, "all were handled")
        super().finish()

    def back(self) -> list[str]:
        topic = self.system.stack.topic
        return ["parked", "from-dlq", "--consumer", "books", "--topic", topic, "--yes", "--wait", "8"]


class BackScenario(PublishScenario):
    """Dead letters are brought back, and that command is hit."""

    def before(self) -> None:
        super().before()
        self.system.complete(super().arguments())

    def arguments(self) -> list[str]:
        return self.back()

    def finish(self) -> None:
        self.system.wait(lambda: self.system.account().holds, "all were handled")
        self.system.write(20)

"""How to reach the points of each part. A new point of a part listed here needs nothing but its scenario to pass it.

Points that want another visit than the first, or a scenario of their own, say so at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from relevo.clients import database_for
from relevo.ops.moving import move
from relevo.runtime.dead_letters import READER
from tests.support.ledger.child import Child
from tests.support.matrix import wire
from tests.support.matrix.parked import REDRIVE, BackScenario, OperatorScenario, PublishScenario, RedriveScenario
from tests.support.matrix.replay import ReplayScenario
from tests.support.matrix.scenario import Scenario


class RelayScenario(Scenario):
    repeats = True

    def steps(self) -> Sequence[Callable[[], None]]:
        return [self.system.write, self._second_relay]

    def _second_relay(self) -> None:
        """Lanes change hands: to another relay, when the first has them all."""
        sql = "relevo_lane where holder is not null"
        self.system.wait(lambda: self.hit() or self.system.count(sql) == 64, "the first relay has all lanes")
        self.system.start("relay")
        self.system.write(20)


class HandOverScenario(RelayScenario):
    def steps(self) -> Sequence[Callable[[], None]]:
        return [self._second_relay]


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
    switches = ("ACTS",)

    def others(self) -> Sequence[str]:
        return ["relay", "consumer"]

    def done(self) -> bool:
        return self.system.count("ledger_act") >= self.system.count("ledger_change") and not self._open()

    def _open(self) -> int:
        return self.system.count("relevo_effect where state <> 'done'")

    def check(self) -> None:
        """Exactly one act for each change, and each is known to be done."""
        self.check_acts()


class DurableScenario(ConsumerScenario):
    """The handler is durable: messages are stored, acknowledged, and handled from the table."""

    switches = ("DURABLE",)

    def done(self) -> bool:
        return super().done() and self.system.count("relevo_held_key") == 0


FIRST = (
    "select m.event_id from relevo_held_message m join relevo_held_key k on k.key = m.held_key and k.state = 'parked' "
    "where not exists (select 1 from relevo_held_message b where b.held_key = m.held_key "
    "and (b.position < m.position or (b.position = m.position and b.held_seq < m.held_seq)))"
)
"""The first message of every parked key's queue."""


class PurgeScenario(Scenario):
    """The relay purges all the time, and what is settled goes to the archive at once."""

    repeats = True
    settings = '[retention]\nevery_s = 0.2\noutbox_days = 0.000001\nthen = "archive"\nbatch = 5\n'

    def check(self) -> None:
        """What was written is in the outbox or in the archive, exactly once."""
        kept = "select cast(event_id as text) from relevo_outbox union all select cast(event_id as text) from {}"
        rows = sorted(self.system.query(kept.format("relevo_archive")))
        assert rows == sorted(self.system.query("select event_id from ledger_change"))


class PartitionScenario(Scenario):
    """The relay closes a partition and drops old ones all the time, beside writers."""

    repeats = True
    settings = '[retention]\nevery_s = 0.2\noutbox_days = 0.000001\nthen = "partitions"\npartition_days = 0.000001\n'
    step_s = 4.0

    def steps(self) -> Sequence[Callable[[], None]]:
        """One partition after the other: only what has rows is closed."""
        return [self.system.write] * 4

    def check(self) -> None:
        """What was written is in the outbox, or was dropped by a transaction that said so, and was published. One
        statement: the relay goes on dropping."""
        dropped, kept = self.system.query(
            "select (select coalesce(sum(count), 0) from relevo_audit where action = 'purge.partition'), "
            "(select count(*) from relevo_outbox)"
        )[0]
        assert dropped + kept == self.system.count("ledger_change"), f"{dropped} dropped, {kept} kept"
        assert dropped > 0, "nothing was dropped"


class LettersScenario(ConsumerScenario):
    """Keys are parked, and the consumer publishes a letter for each. Then the handler is fixed, and they are freed."""

    switches = ("BAD",)
    settings = '[consumers."books"]\ndead_letters = true\n'

    @property
    def letters(self) -> str:
        return f"books.{self.system.stack.topic}.dlq"

    def prepare(self) -> None:
        super().prepare()
        self.system.open_topic(self.letters, [wire.READER, READER])

    def finish(self) -> None:
        system = self.system
        system.wait(self._all_parked, "both keys are parked, and their letters are published", 60)
        self._given_up = {str(row[0]) for row in system.query(FIRST)}
        system.do("insert into ledger_fixed values (1)")
        system.complete(REDRIVE)
        super().finish()

    def _all_parked(self) -> bool:
        parked = self.system.count("relevo_held_key where state = 'parked'")
        return parked == 2 and self.system.count("relevo_dead_letter") == 0

    def done(self) -> bool:
        return super().done() and self.system.count("relevo_held_key") == 0

    def check(self) -> None:
        """A letter for each message that was given up, and for no other; again only under the same id."""
        found = wire.read(self.system.stack.broker, self.system.stack.options, self.letters, 2)
        assert {str(message.event_id) for message in found} == self._given_up


class MoveScenario(Scenario):
    """The tables are moved to `log` (or begin in `wal`), and back to `mark`, beside a writer and a relay: the way back
    is what is hit. It sets markers, builds an index, keeps the relay from its lanes, changes the source. It repeats
    nothing; but a broker that is slow for a moment has what it did not confirm in half a second sent again, move or no
    move."""

    command = True
    repeats = True

    def others(self) -> Sequence[str]:
        return ["relay", "consumer"]

    def before(self) -> None:
        self.system.write(20)
        if self.system.stack.source != "wal":
            asyncio.run(self._there())

    async def _there(self) -> None:
        database = database_for(self.system.settings.database)
        try:
            await move(database, self.system.settings, "log", actor="matrix")
        finally:
            await database.aclose()

    def arm(self) -> Child:
        return self.system.run("operator", self.arguments, self.probe)

    def steps(self) -> Sequence[Callable[[], None]]:
        return [lambda: self.system.write(20)]

    def again(self) -> Child:
        return self.system.complete(self.arguments)

    @property
    def arguments(self) -> list[str]:
        return ["source", "move", "mark", "--yes"]

    def done(self) -> bool:
        moved = self.system.query("select source from relevo_meta") == [("mark",)]
        return moved and super().done() and self.system.count("relevo_job where state = 'running'") == 0


PARTS: dict[str, type[Scenario]] = {
    "relay": RelayScenario,
    "consumer": ConsumerScenario,
    "redrive": RedriveScenario,
    "effect": EffectScenario,
    "mover": MoverScenario,
    "parked": OperatorScenario,
    "purge": PurgeScenario,
    "source": MoveScenario,
    "replay": ReplayScenario,
    "letters": LettersScenario,
}
"""Part of a point's name → its scenario."""

POINTS: dict[str, type[Scenario]] = {
    "relay.released": HandOverScenario,
    "purge.partition": PartitionScenario,
    "consumer.stored": DurableScenario,
    "parked.published": PublishScenario,
    "parked.moved": PublishScenario,
    "parked.brought_back": BackScenario,
}
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
    "consumer.stored": 5,
    "purge.batch": 4,
    "purge.partition": 4,
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

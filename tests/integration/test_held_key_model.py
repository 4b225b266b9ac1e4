"""One key's life as a state machine: add, fail, park, more arrivals, redrive, crash, skip, discard, edit, in any order.

The reference is a plain list: what waits, in order. What took effect, too, is a list. The scripts are the real ones, on
real databases; this test is the engine, and dies wherever it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from relevo.ids import bucket_of, uuid7
from relevo.message import Message
from relevo.ports.source import Disposition, Taken
from relevo.script import Script, Statement
from relevo.storage import draining, holding, inboxing, laning, marking, parking
from relevo.storage.draining import Ending
from relevo.storage.holding import KeyId, Why
from relevo.storage.inboxing import Bounds
from relevo.storage.parking import Acted
from tests.support.relays import postgres_store
from tests.support.scripting import PostgresScripts, Scripts, SqliteScripts

KEY = b"key"
TOPIC = "shop.order"
LEASE_S = 3600.0


def message(number: int) -> Message:
    return Message(
        event_id=uuid7(),
        type="shop.order.placed",
        topic=TOPIC,
        payload=str(number).encode(),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        key=KEY,
    )


class KeyLife(RuleBasedStateMachine):
    """What both sides have in common. ``waiting``: the reference for the queue; ``effects``: for what came through;
    ``state``: live, parked or draining."""

    open: Callable[[], Scripts]
    side: Any

    def __init__(self) -> None:
        super().__init__()
        self.scripts = self.open()
        self.id = KeyId(self.side, "billing" if self.side == "consumer" else "", TOPIC, KEY)
        self.messages: list[Message] = []
        self.waiting: list[int] = []
        self.effects: list[int] = []
        self.given_up: set[int] = set()
        self.state = "live"
        self.bad: set[int] = set()

    def teardown(self) -> None:
        self.scripts.close()

    def number_of(self, event_id: UUID) -> int:
        return next(number for number, each in enumerate(self.messages) if each.event_id == event_id)

    def queue(self) -> list[parking.Queued]:
        return self.scripts.run(parking.queue(self.id, limit=1000))

    @rule()
    def fix_everything(self) -> None:
        self.bad.clear()

    @rule()
    def redrive(self) -> None:
        done = self.scripts.run(parking.free(self.id))
        if self.state == "parked":
            assert done == Acted(len(self.waiting))
            self.state = "draining"
        else:
            assert not isinstance(done, Acted)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), outcome=st.sampled_from(["skipped", "discarded"]))
    def drop_one(self, data: st.DataObject, outcome: Any) -> None:
        index = data.draw(st.integers(0, len(self.waiting) - 1))
        queued = self.queue()[index]
        done = self.scripts.run(parking.drop(self.id, queued, outcome, then_free=outcome == "skipped"))
        assert isinstance(done, Acted) and done.messages == 1
        self.given_up.add(self.waiting.pop(index))
        if outcome == "skipped" and index == 0:
            self.state = "draining"
        if not self.waiting:
            self.state = "live"
        assert done.live == (self.state == "live")

    @precondition(lambda self: self.state != "live")
    @rule()
    def discard_the_key(self) -> None:
        done = self.scripts.run(parking.drop(self.id, None, "discarded"))
        assert done == Acted(len(self.waiting), live=True)
        self.given_up.update(self.waiting)
        self.waiting, self.state = [], "live"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        """The new one stands where the old one stood."""
        index = data.draw(st.integers(0, len(self.waiting) - 1))
        queued = self.queue()[index]
        new = msgspec.structs.replace(message(len(self.messages)), headers={"relevo-edited-from": "x"})
        assert isinstance(
            self.scripts.run(parking.replace(self.id, queued.held_seq, new, queued.message.event_id)), Acted
        )
        self.given_up.add(self.waiting[index])
        self.waiting[index] = len(self.messages)
        self.messages.append(new)

    @invariant()
    def the_queue_is_the_list(self) -> None:
        assert [self.number_of(queued.message.event_id) for queued in self.queue()] == self.waiting

    @invariant()
    def a_key_is_live_if_and_only_if_it_has_no_row(self) -> None:
        states = [row[0] for row in self.scripts.query("select state from relevo_held_key")]
        assert states == ([] if self.state == "live" else [self.state])


class AtConsumer(KeyLife):
    """Deliveries may repeat; effects are what the inbox let through, each once."""

    side = "consumer"

    @rule(bad=st.booleans())
    def arrive(self, bad: bool) -> None:
        self.messages.append(message(len(self.messages)))
        number = len(self.messages) - 1
        if bad:
            self.bad.add(number)
        self._deliver(number)

    @precondition(lambda self: any(not each.headers for each in self.messages))
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """What was fated stays so, whatever its fate."""
        came = [number for number, each in enumerate(self.messages) if not each.headers]
        self._deliver(data.draw(st.sampled_from(came)))

    def _deliver(self, number: int) -> None:
        known = number in self.effects or number in self.given_up or number in self.waiting
        each = self.messages[number]
        behind = self.scripts.run(self._first_run(each, number))
        if behind is None:  # live, and the handler failed
            fate = self.scripts.run(
                holding.hold(self.id, each, "s", number, state="parked", why=Why("bad"), attempts=1, delay_s=None)
            )
            assert (fate == "done") == known
            if not known:
                self.waiting, self.state = [number], "parked"
        elif behind == "behind" and not known:
            self.waiting.append(number)
        elif behind == "handled":
            assert not known
            self.effects.append(number)

    def _first_run(self, each: Message, number: int) -> Script[str | None]:
        behind = yield from holding.queued_behind(self.id, each, "s", number, Bounds())
        if behind is not None:
            return behind
        if number in self.bad:
            return None
        return "handled" if (yield from inboxing.insert("billing", each.event_id)) else "known"

    @precondition(lambda self: self.state == "draining")
    @rule(steps=st.integers(0, 4), crash=st.sampled_from(["no", "before", "counted", "handling"]))
    def drain(self, steps: int, crash: str) -> None:
        """A process drains some heads, and perhaps dies: its claim runs out, the next one goes on."""
        (claim,) = self.scripts.run(holding.claim_due("consumer", "billing", uuid4(), LEASE_S, 10))
        busy = self.scripts.run(parking.drop(self.id, None, "discarded"))
        assert isinstance(busy, parking.Busy), "an operator leaves a claimed key alone"
        for _ in range(steps):
            head = self.scripts.run(holding.head(claim, lease_s=LEASE_S))
            if head is None:
                self.state = "live"
                return
            assert isinstance(head, holding.Head)
            number = self.number_of(head.message.event_id)
            assert number == self.waiting[0]
            if number in self.bad:
                why = Why("still bad")
                assert self.scripts.run(
                    holding.put_back(claim, state="parked", why=why, attempts=head.attempts, delay_s=None)
                )
                self.state = "parked"
                return
            assert self.scripts.run(self._handled(claim, head))
            self.effects.append(self.waiting.pop(0))
        if crash == "counted":
            self.scripts.run(holding.head(claim, lease_s=LEASE_S)) or setattr(self, "state", "live")
        elif crash == "no":
            assert self.scripts.run(holding.release(claim, refund=0))
        self.scripts.run(_expire())

    @staticmethod
    def _handled(claim: holding.Claimed, head: holding.Head) -> Script[bool]:
        assert (yield from inboxing.insert("billing", head.message.event_id))
        return (yield from holding.remove(claim, head.held_seq))

    @invariant()
    def the_inbox_knows_what_is_fated_and_nothing_else(self) -> None:
        rows = self.scripts.query("select event_id, outcome from relevo_inbox")
        known = {self.number_of(UUID(str(event_id))): outcome for event_id, outcome in rows}
        assert {number for number, outcome in known.items() if outcome == "done"} == set(self.effects)
        assert {number for number, outcome in known.items() if outcome != "done"} == self.given_up

    @invariant()
    def effects_are_in_order_but_for_edits(self) -> None:
        assert len(set(self.effects)) == len(self.effects)
        came = [number for number in self.effects if not self.messages[number].headers]
        assert came == sorted(came)


class AtRelay(KeyLife):
    """The relay dies between the broker's confirm and its own settlement: repeats on the wire, never a swap."""

    side = "relay"

    def __init__(self) -> None:
        super().__init__()
        self.holder = uuid4()
        self.lane = bucket_of(KEY, self.holder) % 64
        self.scripts.run(_free_lanes())
        self.lanes = self.scripts.run(laning.acquire(self.holder, [self.lane], LEASE_S))
        self.held: set[tuple[str, bytes]] = set()
        self.wire: list[int] = []

    def _take_over(self) -> None:
        """A crash: the next relay acquires the lane with a new epoch and loads what is held."""
        self.scripts.run(_free_lanes())
        self.holder = uuid4()
        self.lanes = self.scripts.run(laning.acquire(self.holder, [self.lane], LEASE_S))
        self.held = self.scripts.run(marking.load_held(self.lanes, 64))

    @rule(bad=st.booleans(), crash=st.booleans())
    def arrive(self, bad: bool, crash: bool) -> None:
        """One page of one message; after a crash it is taken again."""
        each = message(len(self.messages))
        self.messages.append(each)
        number = len(self.messages) - 1
        if bad:
            self.bad.add(number)
        seq = self.scripts.run(_append(each))
        while True:
            behind = (TOPIC, KEY) in self.held
            refused = not behind and number in self.bad
            if not behind and not refused:
                self.wire.append(number)
            if crash:
                crash = False
                self._take_over()
                continue
            action = "behind" if behind else "hold" if refused else None
            fates = {} if action is None else {0: Disposition(action, "bad", "bad")}  # type: ignore[arg-type]
            settled = self.scripts.run(
                marking.settle(self.holder, self.lanes, Taken([seq], [self.lane], [each], True), fates)
            ).settled
            if settled.live:
                self.held.discard((TOPIC, KEY))
                continue
            break
        if action is None:
            self.effects.append(number)
            return
        self.held.add((TOPIC, KEY))
        self.waiting.append(number)
        self.state = "parked" if self.state == "live" else self.state

    @precondition(lambda self: self.state == "draining")
    @rule(most=st.integers(1, 4), crash=st.sampled_from(["no", "claimed", "sent"]))
    def drain(self, most: int, crash: str) -> None:
        due = self.scripts.run(draining.due(self.lanes, 64, [], 10))
        assert due == [(TOPIC, KEY, self.lane)]
        batches, _ = self.scripts.run(
            draining.claim(
                self.holder,
                self.lanes,
                due,
                dialect=self.scripts.dialect,
                lease_s=LEASE_S,
                messages_max=most,
                bytes_max=1_000_000,
            )
        )
        (batch,) = batches
        busy = self.scripts.run(parking.drop(self.id, None, "discarded"))
        assert isinstance(busy, parking.Busy), "an operator leaves a claimed key alone"
        if crash == "claimed":
            self._take_over()
            self.scripts.run(_expire())
            return
        ending = Ending(batch)
        for queued in batch.queued:
            number = self.number_of(queued.message.event_id)
            if number in self.bad:
                ending.parked = Why("still bad")
                break
            self.wire.append(number)
            ending.published.append(queued)
        if crash == "sent":
            lost = self.holder, self.lanes
            self._take_over()
            late = self.scripts.run(draining.settle(*lost, [ending]))
            assert late.lost == {self.lane} and not late.live, "whoever lost the lane settles nothing"
            self.scripts.run(_expire())
            return
        drained = self.scripts.run(draining.settle(self.holder, self.lanes, [ending]))
        sent = self.waiting[: len(ending.published)]
        self.effects += sent
        del self.waiting[: len(sent)]
        if not self.waiting:
            self.state = "live"
            assert drained.live == [(TOPIC, KEY)]
            self.held.discard((TOPIC, KEY))
        elif ending.parked is not None:
            self.state = "parked"

    @invariant()
    def the_wire_is_the_reference_but_for_repeats(self) -> None:
        first = [number for number in dict.fromkeys(self.wire) if number in set(self.effects)]
        assert first == self.effects

    @invariant()
    def the_outbox_says_what_became_of_each(self) -> None:
        rows = self.scripts.query("select event_id, outcome from relevo_outbox")
        outcomes = {self.number_of(UUID(str(event_id))): outcome for event_id, outcome in rows}
        for number, outcome in outcomes.items():
            assert (outcome == "published") == (number in self.effects), (number, outcome)


def _expire() -> Script[None]:
    yield Statement("test.expire")


def _free_lanes() -> Script[None]:
    yield Statement("test.free_lanes")


def _append(each: Message) -> Script[int]:
    rows = yield Statement(
        "test.append",
        {
            "event_id": str(each.event_id),
            "bucket": bucket_of(each.key, each.event_id),
            "topic": each.topic,
            "key": each.key,
            "type": each.type,
            "payload": each.payload,
        },
    )
    return int(rows[0][0])


def _teach(scripts: Scripts) -> Scripts:
    """Statements of the test's own, under names of the catalog."""
    never = "'-infinity'" if scripts.dialect == "postgresql" else "0"
    uuid = "cast(:event_id as uuid)" if scripts.dialect == "postgresql" else ":event_id"
    texts = {
        "test.expire": f"update {{held_key}} set expires_at = {never}",
        "test.free_lanes": "update {lane} set holder = null",
        "test.append": "insert into {outbox} (event_id, bucket, topic, key, type, payload) "
        f"values ({uuid}, :bucket, :topic, :key, :type, :payload) returning seq",
    }
    for name, text in texts.items():
        scripts.catalog._texts[name] = scripts.catalog.fill(text)
    return scripts


def play(machine: type[KeyLife], open_scripts: Callable[[], Scripts], examples: int) -> None:
    opened = type(machine.__name__, (machine,), {"open": staticmethod(lambda: _teach(open_scripts()))})
    run_state_machine_as_test(
        opened,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_one_keys_life_at_the_consumer() -> None:
    play(AtConsumer, SqliteScripts, 60)


def test_one_keys_life_at_the_relay() -> None:
    play(AtRelay, SqliteScripts, 60)


def test_one_keys_life_at_the_consumer_on_postgres(pg_database: str) -> None:
    postgres_store(pg_database)
    play(AtConsumer, lambda: PostgresScripts(pg_database), 12)


def test_one_keys_life_at_the_relay_on_postgres(pg_database: str) -> None:
    postgres_store(pg_database)
    play(AtRelay, lambda: PostgresScripts(pg_database), 12)

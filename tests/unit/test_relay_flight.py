"""Pages under way together: order per key, whatever lands when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from relevo.message import Message
from relevo.outcome import PublishOutcome, Rejected
from relevo.policy import Policy
from relevo.ports.source import Disposition, Settled, SourceCapabilities, Taken
from relevo.relay.counters import Counters
from relevo.relay.dispositions import KeyName
from relevo.relay.flight import PAGES, Flight
from relevo.relay.pausing import RelayPauses
from tests.support.pipelined import Pipelined
from tests.support.relays import FakePublisher

PAGE = 5


@dataclass
class Lanes:
    """Every lane is ours."""

    paused: Collection[int] = ()

    def may_send(self, lanes: Collection[int]) -> bool:
        return True

    def lose(self, lanes: Collection[int]) -> None:
        raise AssertionError(lanes)


@dataclass
class Outbox:
    """The outbox as a list: what is unsettled and not in flight, in order, a page at a time."""

    messages: list[Message]
    open: set[int] = field(default_factory=set)
    flying: set[int] = field(default_factory=set)
    held: dict[KeyName, list[int]] = field(default_factory=dict)
    capabilities = SourceCapabilities(lanes=True, history=True)

    def __post_init__(self) -> None:
        self.open = set(range(len(self.messages)))

    async def take(self) -> Taken:
        await asyncio.sleep(0)
        seqs = sorted(self.open - self.flying)[:PAGE]
        self.flying |= set(seqs)
        return Taken(seqs, [0] * len(seqs), [self.messages[seq] for seq in seqs], len(seqs) < PAGE)

    async def settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        await asyncio.sleep(0)
        for index, seq in enumerate(taken.seqs):
            disposition = dispositions.get(index)
            if disposition is not None and disposition.action in ("hold", "behind"):
                message = self.messages[seq]
                self.held.setdefault((message.topic, message.key or b""), []).append(seq)
            if disposition is None or disposition.action != "back":
                self.open.discard(seq)
        await self.release(taken)
        return Settled(len(taken), (), ())

    async def settle_all(self, pages: Sequence[Taken]) -> Settled:
        for page in pages:
            await self.settle(page, {})
        return Settled(sum(map(len, pages)), (), ())

    async def release(self, taken: Taken) -> None:
        self.flying -= set(taken.seqs)


class Slow(FakePublisher):
    """Confirms later, now and then; refuses what ``bad`` names, as long as it does."""

    def __init__(self, chance: random.Random, bad: set[int]) -> None:
        super().__init__(answer=lambda message: self._judge(message))
        self.chance, self.bad = chance, bad
        self.under_way = self.at_once = 0

    def _judge(self, message: Message) -> PublishOutcome | None:
        return Rejected("message_too_large", "no") if int(message.payload or b"0") in self.bad else None

    async def _publish(self, number: int, messages: Any) -> Mapping[int, PublishOutcome]:
        self.under_way += 1
        self.at_once = max(self.at_once, self.under_way)
        outcomes = await super()._publish(number, messages)
        for _ in range(self.chance.choice((0, 0, 1, 3, 9))):
            await asyncio.sleep(0)
        self.under_way -= 1
        return outcomes


def outbox(count: int, keys: int) -> Outbox:
    now = datetime.now(UTC)
    return Outbox(
        [
            Message(
                event_id=UUID(int=n), type="t", topic="t", payload=b"%d" % n, created_at=now, key=b"%d" % (n % keys)
            )
            for n in range(count)
        ]
    )


def flight(source: Outbox, publisher: FakePublisher, policy: Policy) -> Flight:
    everything: Any = source
    return Flight(
        everything,
        publisher,
        Lanes(),  # type: ignore[arg-type]
        RelayPauses(),
        lambda topic: policy,
        Counters(),
        source.take,
        lambda verdict: None,
    )


async def carry_all(source: Outbox, under_way: Flight) -> None:
    while True:
        taken = await under_way.next_page()
        if not taken:
            await under_way.at_rest()
            if not source.open:
                return
            continue
        await under_way.carry(taken)


@pytest.mark.parametrize("publisher_of", [Slow, Pipelined])
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("on_rejected", ["park", "skip"])
async def test_nothing_of_a_key_passes_what_was_refused(seed: int, on_rejected: Any, publisher_of: Any) -> None:
    """FAILURES row 10, over pages: whatever lands when, what was sent of a key is in order, and behind a parked message
    everything of its key waits in order; a message that went back stays before one that was refused behind it."""
    chance = random.Random(seed)
    source = outbox(80, keys=chance.choice((1, 3, 7)))
    bad = set(chance.sample(range(80), chance.choice((1, 2, 6))))
    publisher = publisher_of(chance, bad)
    await asyncio.wait_for(carry_all(source, flight(source, publisher, Policy(on_rejected=on_rejected))), 20)
    keys = {message.key for message in source.messages}
    for key in keys:
        sent = publisher.payloads(key)
        waiting = source.held.get(("t", key or b""), [])
        assert sent == sorted(set(sent))
        assert waiting == sorted(set(waiting))
        wanted = [int(message.payload or b"0") for message in source.messages if message.key == key]
        if on_rejected == "skip":
            assert sent == [number for number in wanted if number not in bad]
        else:
            assert sent + waiting == wanted
            assert not waiting or waiting[0] in bad


async def test_several_pages_are_under_way_with_a_prefix_safe_publisher_only() -> None:
    for prefix_safe in (True, False):
        source = outbox(100, keys=50)
        publisher = Slow(random.Random(1), set())
        publisher.prefix_safe = prefix_safe
        await carry_all(source, flight(source, publisher, Policy()))
        assert publisher.payloads() == list(range(100))
        assert 1 < publisher.at_once <= PAGES if prefix_safe else publisher.at_once == 1


async def test_pages_that_land_during_a_settlement_go_into_the_next_together() -> None:
    """A commit for each page would be the price of following closely."""
    source = outbox(6 * PAGE, keys=3)
    gate, commits = asyncio.Event(), []
    settle_all = source.settle_all

    async def slowly(pages: Sequence[Taken]) -> Settled:
        commits.append(len(pages))
        await gate.wait()
        return await settle_all(pages)

    source.settle_all = slowly  # type: ignore[method-assign]
    under_way = flight(source, FakePublisher(), Policy())
    for _ in range(4):
        await under_way.carry(await under_way.next_page())
        await under_way.land_all()
    await asyncio.sleep(0)
    assert commits == [1] and len(source.open) == 6 * PAGE
    gate.set()
    await under_way.settled()
    assert commits == [1, 3] and len(source.open) == 2 * PAGE
    await under_way.at_rest()


async def test_while_nobody_waits_small_pages_are_settled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit now and then: the first at once, the next when its time has come, when many messages wait for it, or
    when somebody waits."""
    monkeypatch.setattr("relevo.relay.settling.EVERY_S", 3600.0)
    monkeypatch.setattr("relevo.relay.settling.MANY", 4 * PAGE)
    source, commits = outbox(12 * PAGE, keys=3), []
    settle_all = source.settle_all

    async def counted(pages: Sequence[Taken]) -> Settled:
        commits.append(len(pages))
        return await settle_all(pages)

    source.settle_all = counted  # type: ignore[method-assign]
    under_way = flight(source, FakePublisher(), Policy())

    async def carry(pages: int) -> list[int]:
        for _ in range(pages):
            await under_way.carry(await under_way.next_page())
            await under_way.land_all()
        for _ in range(20):
            await asyncio.sleep(0)
            await under_way.land_ended()
        return commits

    under_way._settling._began_at = -3600.0
    assert await carry(1) == [1]
    assert await carry(3) == [1]
    assert await carry(1) == [1, 4]
    assert await carry(2) == [1, 4]
    await under_way.settled()
    assert commits == [1, 4, 2] and len(source.open) == 5 * PAGE
    monkeypatch.setattr("relevo.relay.settling.EVERY_S", 0.0)
    assert await carry(1) == [1, 4, 2, 1]
    await under_way.at_rest()


@pytest.mark.parametrize("end", ["at_rest", "forget"])
async def test_what_waits_for_company_is_settled_or_given_back_at_the_end(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("relevo.relay.settling.EVERY_S", 3600.0)
    source = outbox(4 * PAGE, keys=3)
    under_way = flight(source, FakePublisher(), Policy())
    under_way._settling._began_at = asyncio.get_running_loop().time()
    for _ in range(2):
        await under_way.carry(await under_way.next_page())
        await under_way.land_all()
    assert len(source.open) == 4 * PAGE
    await asyncio.wait_for(getattr(under_way, end)(), 10)
    assert not source.flying
    assert len(source.open) == 2 * PAGE

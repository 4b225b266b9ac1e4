"""What every broker adapter must do, ours or a stranger's. Subclass it and give one fixture::

    class TestMyBroker(BrokerConformance):
        @pytest.fixture
        def make_broker(self):
            return functools.partial(my_broker, "my://127.0.0.1:1234")

``make_broker`` gives a factory of ``Broker`` objects that all lead to the same place; it must be picklable, since some
tests use it in a process that they kill. The broker must not create topics by itself (``ensure_topics`` does). Give
short session or lease time-outs: members are killed here. Needs pytest and pytest-asyncio in auto mode.

What a broker cannot do is declared in its capabilities; the test that needs it is skipped and prints the declaration.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Protocol

import pytest

from relevo.errors import ConfigError, UnreachableError
from relevo.message import Message
from relevo.outcome import Accepted, Rejected, Unavailable, Unconfirmed
from relevo.ports.broker import SEND_TIMEOUT_S, Broker, Delivery, Publisher, Subscription
from relevo.testing.broker_processes import MakeBroker, make_message, member_that_hangs, publisher_that_goes_on, running

__all__ = ["BrokerConformance", "Outage"]

SOURCE = "urn:relevo:conformance"


class Outage(Protocol):
    """A broker that a test may take away and give back, best one of its own."""

    def make_broker(self) -> Broker: ...

    async def begin(self) -> None: ...

    async def end(self) -> None: ...


class BrokerConformance:
    """The suite. ``patience_s``: how long a fact may take to become true before a test fails, a dead member's shards
    included; ``too_large_bytes``: a payload no topic takes; ``send_timeout_s``: given to the publisher
    that meets an outage; its publish must have ended by ``ends_within_s``."""

    patience_s: ClassVar[float] = 30.0
    too_large_bytes: ClassVar[int] = 2_000_000
    send_timeout_s: ClassVar[float] = 2.0
    ends_within_s: ClassVar[float] = 10.0

    @pytest.fixture
    def make_broker(self) -> MakeBroker:
        raise NotImplementedError("give a fixture make_broker: a picklable function that returns a Broker")

    @pytest.fixture
    def outage(self) -> Outage | None:
        """``None``: this broker is not taken away by the suite."""
        return None

    @pytest.fixture
    def broker(self, make_broker: MakeBroker) -> Broker:
        return make_broker()

    @pytest.fixture
    async def topic(self, broker: Broker) -> str:
        name = f"conformance.{secrets.token_hex(8)}"
        assert await broker.ensure_topics([name]) == [name]
        return name

    @pytest.fixture
    def group(self) -> str:
        return f"group-{secrets.token_hex(8)}"

    # -- what arrives is what was sent ------------------------------------------------------------------------------

    async def test_round_trip(self, broker: Broker, topic: str, group: str) -> None:
        """FAILURES row 20: keys of None and b"", payloads None, b"" and b"null", many headers, headers beyond ASCII:
        unchanged and distinct."""
        headers = {"note": "Grüße, 你好 🎈", "empty": "", **{f"h{index}": str(index) for index in range(15)}}
        sent = [
            make_message(topic, key=key, payload=payload, headers=headers)
            for key in (None, b"", b"\x00\xff", "schlüssel".encode())
            for payload in (None, b"", b"null", b"\x00\xfe\xff")
        ]
        sent.append(
            make_message(
                topic,
                payload=b"{}",
                kind="command",
                schema_version=7,
                content_type="application/x-test",
                aggregate_type="order",
                aggregate_id="Nº 4",
                aggregate_version=3,
            )
        )
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            assert await publisher.publish(sent) == {}
            arrived = {delivery.message.event_id: delivery for delivery in await self.collect(member, len(sent))}
        for message in sent:
            assert arrived[message.event_id].message == message
            assert arrived[message.event_id].malformed is None

    async def test_order_within_and_across_calls(self, broker: Broker, topic: str, group: str) -> None:
        """Messages of a key arrive in the order given, within one call and over calls that are under way together."""
        keys = [b"a", b"b", b"c", b"d", b"e"]
        calls = [[make_message(topic, key=key) for _ in range(20) for key in keys] for _ in range(6)]
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            outcomes = await asyncio.gather(*[publisher.publish(call) for call in calls])
            assert outcomes == [{}] * len(calls)
            arrived = await self.collect(member, 600)
        assert by_key(delivery.message for delivery in arrived) == by_key(m for call in calls for m in call)
        last: dict[str, int] = {}
        for delivery in arrived:
            assert delivery.position > last.get(delivery.shard, -1)
            last[delivery.shard] = delivery.position

    async def test_every_group_gets_everything(self, broker: Broker, topic: str) -> None:
        """Two groups each get each message once."""
        sent = [make_message(topic, key=b"%d" % number) for number in range(30)]
        groups = (f"one-{secrets.token_hex(8)}", f"two-{secrets.token_hex(8)}")
        for group in groups:
            await self.keep_for(broker, group, topic)
        async with _publisher(broker) as publisher:
            assert await publisher.publish(sent) == {}
        for group in groups:
            async with _member(broker, group, topic) as member:
                assert ids(await self.collect(member, 30)) == Counter(message.event_id for message in sent)

    async def test_a_new_group_may_begin_at_the_end(self, broker: Broker, topic: str, group: str) -> None:
        """``from_start=False``: what was there before is not delivered, what comes later is."""
        await self.keep_for(broker, f"other-{group}", topic)
        old = [make_message(topic, key=b"k") for _ in range(5)]
        async with _publisher(broker) as publisher:
            assert await publisher.publish(old) == {}
            member = await broker.subscribe(group, [topic], from_start=False)
            try:
                new: set[object] = set()
                arrived: list[Delivery] = []

                async def something_new() -> bool:
                    message = make_message(topic, key=b"k")
                    new.add(message.event_id)
                    assert await publisher.publish([message]) == {}
                    arrived.extend(await member.take(100, 0.2))
                    return bool(arrived)

                await self.until(something_new)
                assert set(ids(arrived)) <= new
            finally:
                await member.aclose()

    # -- what is not accepted ---------------------------------------------------------------------------------------

    async def test_unknown_topic(self, broker: Broker, topic: str, group: str) -> None:
        """FAILURES row 18: a message for a topic that does not exist is rejected with that reason, and its neighbours
        are accepted. For a moment it may be unavailable instead: where a new topic is not known to all of the broker at
        once. A consumer of such a topic is told."""
        unknown = f"unknown.{secrets.token_hex(8)}"
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            sent = [make_message(topic), make_message(unknown), make_message(topic)]
            outcomes = dict(await publisher.publish(sent))
            assert outcomes.keys() == {1}

            async def judged() -> bool:
                if isinstance(outcomes[1], Unavailable):
                    outcomes[1] = (await publisher.publish([sent[1]]))[0]
                return not isinstance(outcomes[1], Unavailable)

            await self.until(judged)
            assert isinstance(rejected := outcomes[1], Rejected) and rejected.code == "unknown_topic"
            assert ids(await self.collect(member, 2)) == Counter([sent[0].event_id, sent[2].event_id])
        async with _member(broker, group + "-unknown", unknown) as lost:
            with pytest.raises(ConfigError, match=unknown.replace(".", r"\.")):
                await self.until(lambda: _took(lost))

    async def test_nothing_passes_a_refused_message(self, broker: Broker, topic: str, group: str) -> None:
        """FAILURES row 10: the first of three messages of a key is too large. The others of its key are not let past
        it, neither in that call nor in one handed over before the refusal was known. Other keys flow, and so does this
        key once its owner has decided."""
        if not broker.capabilities.prefix_safe:
            pytest.skip("capabilities.prefix_safe is false: the relay keeps one unconfirmed message per key")
        huge = make_message(topic, key=b"k", payload=b"x" * self.too_large_bytes)
        first = [huge, make_message(topic, key=b"k"), make_message(topic, key=b"o"), make_message(topic, key=b"k")]
        second = [make_message(topic, key=b"o"), make_message(topic, key=b"k"), make_message(topic)]
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            one, two = await asyncio.gather(publisher.publish(first), publisher.publish(second))
            assert isinstance(rejected := one[0], Rejected) and rejected.code == "message_too_large"
            assert isinstance(one[1], Unconfirmed) and isinstance(one[3], Unconfirmed)
            assert isinstance(two[1], Unconfirmed)
            assert set(one) == {0, 1, 3} and set(two) == {1}
            again = [first[1], first[3], second[1]]
            assert await publisher.publish(again) == {}
            arrived = [delivery.message for delivery in await self.collect(member, 6)]
            assert by_key(arrived)[b"k"] == [message.event_id for message in again]
            assert by_key(arrived)[b"o"] == [first[2].event_id, second[0].event_id]

    async def test_probe(self, broker: Broker, topic: str) -> None:
        """A probe tells whether a destination takes messages, and sends none."""
        async with _publisher(broker) as publisher:
            assert isinstance(await publisher.probe(topic), Accepted)
            unknown = f"unknown.{secrets.token_hex(8)}"

            async def rejected() -> bool:
                return isinstance(await publisher.probe(unknown), Rejected)

            await self.until(rejected)

    async def test_an_outage_and_its_end(self, outage: Outage | None, group: str) -> None:
        """FAILURES row 16: while the broker is away, publish ends in time and says so; afterwards the same publisher
        works, in order, and nothing that was not accepted turns up later out of its place."""
        if outage is None:
            pytest.skip("no fixture `outage`: this broker cannot be taken away by the suite")
        broker = outage.make_broker()
        topic = f"conformance.{secrets.token_hex(8)}"
        await broker.ensure_topics([topic])
        async with _publisher(broker, self.send_timeout_s) as publisher, _member(broker, group, topic) as member:
            before = [make_message(topic, key=b"k") for _ in range(10)]
            assert await publisher.publish(before) == {}
            during = [make_message(topic, key=b"k") for _ in range(10)]
            await outage.begin()
            try:
                began = time.monotonic()
                outcomes = await publisher.publish(during)
                assert time.monotonic() - began < self.ends_within_s
                assert set(outcomes) == set(range(10))
                assert all(isinstance(outcome, Unavailable | Unconfirmed) for outcome in outcomes.values())
                assert isinstance(await publisher.probe(topic), Unavailable)
            finally:
                await outage.end()

            async def back() -> bool:
                return isinstance(await publisher.probe(topic), Accepted)

            await self.until(back)

            async def sent() -> bool:
                return await publisher.publish(during) == {}

            await self.until(sent)
            last = make_message(topic, key=b"k")
            assert await publisher.publish([last]) == {}
            expected = [message.event_id for message in [*before, *during, last]]
            arrived: dict[object, None] = {}

            async def last_is_there() -> bool:
                try:
                    deliveries = await member.take(100, 1.0)
                except UnreachableError:  # the consumer notices later than we do that the broker is back
                    return False
                arrived.update(dict.fromkeys(delivery.message.event_id for delivery in deliveries))
                return last.event_id in arrived

            await self.until(last_is_there)
            # An unconfirmed message may have been written, so a repetition is allowed; a gap or a swap is not.
            assert list(arrived) == expected

    # -- settling ---------------------------------------------------------------------------------------------------

    async def test_what_was_not_settled_comes_again(self, broker: Broker, topic: str, group: str) -> None:
        """Of five messages of a shard 0, 1 and 3 are settled: a new member begins with 2. A log repeats 3, a broker
        with ``capabilities.settles_each`` does not."""
        await self.keep_for(broker, group, topic)
        async with _publisher(broker) as publisher:
            sent = [make_message(topic, key=b"k") for _ in range(5)]
            assert await publisher.publish(sent) == {}
        async with _member(broker, group, topic) as member:
            arrived = await self.collect(member, 5)
            await member.settle([arrived[3]])
            await member.settle([arrived[1], arrived[0]])
            await member.flush()
        expected = [sent[2], sent[4]] if broker.capabilities.settles_each else sent[2:]
        async with _member(broker, group, topic) as member:
            again = await self.collect(member, len(expected))
        assert [delivery.message.event_id for delivery in again] == [message.event_id for message in expected]

    async def test_lag(self, broker: Broker, topic: str, group: str) -> None:
        """Ten messages, four of them settled: six to go."""
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            assert await publisher.publish([make_message(topic, key=b"k") for _ in range(10)]) == {}
            arrived = await self.collect(member, 10)
            await member.settle(arrived[:4])
            lag = await member.lag()
            assert lag[arrived[0].shard] == 6
            assert sum(lag.values()) == 6

    async def test_handed_back_comes_again(self, broker: Broker, topic: str, group: str) -> None:
        """Of three, the first is settled and the others handed back: they come again, in order."""
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            assert await publisher.publish([make_message(topic, key=b"k") for _ in range(3)]) == {}
            arrived = await self.collect(member, 3)
            await member.settle(arrived[:1])
            await member.hand_back(arrived[1:])
            again = await self.collect(member, 2)
            assert [d.message.event_id for d in again] == [d.message.event_id for d in arrived[1:]]
            await member.settle(again)
            await member.flush()
            assert sum((await member.lag()).values()) == 0

    async def test_pause_and_resume(self, broker: Broker, topic: str, group: str) -> None:
        """A paused member gets nothing and keeps its shards; a resumed one goes on."""
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            assert await publisher.publish([make_message(topic, key=b"k")]) == {}
            (first,) = await self.collect(member, 1)
            member.pause()
            assert await publisher.publish([make_message(topic, key=b"k")]) == {}
            assert await member.take(10, 0.5) == []
            assert member.owns(first)
            member.resume()
            (second,) = await self.collect(member, 1)
            assert second.position > first.position

    # -- sharing ----------------------------------------------------------------------------------------------------

    async def test_all_shards_are_owned(self, broker: Broker, topic: str, group: str) -> None:
        """Alone, a member owns all shards there are; two own them together, and none of them both."""
        async with _member(broker, group, topic) as one:
            await self.until(lambda: _own_all(one))
            async with _member(broker, group, topic) as two:
                await self.until(lambda: _both_have_shards(one, two))
                await self.until(lambda: _own_all(one, two))
                assert not set(await one.lag()) & set(await two.lag())
                assert await two.shard_count() == await one.shard_count() > 0

    async def test_two_members_share_and_one_leaves(self, broker: Broker, topic: str, group: str) -> None:
        """Two members share the shards; each message goes to one. When one leaves the other gets all."""
        async with _publisher(broker) as publisher, _member(broker, group, topic) as one:
            two = await broker.subscribe(group, [topic])
            try:
                await self.until(lambda: _both_have_shards(one, two))
                sent = [make_message(topic, key=b"%d" % number) for number in range(60)]
                assert await publisher.publish(sent) == {}
                first, second = await self.collect_both(one, two, 60)
                assert ids(first + second) == Counter(message.event_id for message in sent)
                assert first and second
                assert not {d.shard for d in first} & {d.shard for d in second}
                await one.settle(first)
                await two.settle(second)
            finally:
                await two.aclose()
            assert await publisher.publish(more := [make_message(topic, key=b"%d" % n) for n in range(60)]) == {}
            assert ids(await self.collect(one, 60)) == Counter(message.event_id for message in more)

    async def test_work_in_flight_is_finished_before_a_shard_moves(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        """``on_revoke`` is awaited before the shards move: what it settles is not delivered again."""
        async with _publisher(broker) as publisher, _member(broker, group, topic) as one:
            sent = [make_message(topic, key=b"%d" % number) for number in range(40)]
            assert await publisher.publish(sent) == {}
            arrived = await self.collect(one, 40)
            finished: list[Delivery] = []

            async def finish(shards: Sequence[str]) -> None:
                mine = [delivery for delivery in arrived if delivery.shard in shards]
                assert all(one.owns(delivery) for delivery in mine)
                await one.settle(mine)
                await one.flush()
                finished.extend(mine)

            one.on_revoke(finish)
            async with _member(broker, group, topic) as two:
                await self.until(lambda: _both_have_shards(one, two))
                assert finished
                marker = [make_message(topic, key=b"%d" % number) for number in range(40)]
                assert await publisher.publish(marker) == {}
                _, second = await self.collect_both(one, two, 40)
                assert not set(ids(second)) & set(ids(finished))

    async def test_a_stale_delivery_settles_nothing(self, broker: Broker, topic: str, group: str) -> None:
        """A member settles what it took before its shard moved: ignored, and the new owner gets it."""
        async with _publisher(broker) as publisher, _member(broker, group, topic) as one:
            sent = [make_message(topic, key=b"%d" % number) for number in range(40)]
            assert await publisher.publish(sent) == {}
            arrived = await self.collect(one, 40)
            two = await broker.subscribe(group, [topic])
            try:
                await self.until(lambda: _both_have_shards(one, two))
                stale = [delivery for delivery in arrived if not one.owns(delivery)]
                assert stale
                await one.settle(arrived)
                await one.flush()
                again = await self.collect(two, len(stale))
                assert ids(again) == ids(stale)
            finally:
                await two.aclose()
            assert set(ids(await self.collect(one, len(stale)))) == set(ids(stale))

    async def test_a_killed_member_loses_nothing(
        self, make_broker: MakeBroker, broker: Broker, topic: str, group: str
    ) -> None:
        """SIGKILL on a process that has taken all messages and settled some: another gets those not settled."""
        sent = [make_message(topic, key=b"k") for _ in range(10)]
        await self.keep_for(broker, group, topic)
        async with _publisher(broker) as publisher:
            assert await publisher.publish(sent) == {}
        with running(member_that_hangs, make_broker, group, topic, len(sent), 4) as child:
            await self.until(child.said)
            child.kill()
        async with _member(broker, group, topic) as member:
            again = await self.collect(member, 6)
            assert [delivery.message.event_id for delivery in again] == [message.event_id for message in sent[4:]]

    async def test_a_killed_publisher_leaves_order(
        self, make_broker: MakeBroker, broker: Broker, topic: str, group: str
    ) -> None:
        """SIGKILL on a process that publishes without a pause: every message it saw accepted is there, and each key has
        a sequence without holes."""
        await self.keep_for(broker, group, topic)
        with running(publisher_that_goes_on, make_broker, topic) as child:
            await self.until(lambda: child.said(at_least=20))
            child.kill()
        accepted = child.last
        async with _publisher(broker) as publisher, _member(broker, group, topic) as member:
            end = [make_message(topic, key=b"k%d" % number, payload=b"end") for number in range(8)]
            assert await publisher.publish(end) == {}
            numbers: dict[bytes, list[bytes]] = defaultdict(list)

            async def all_ended() -> bool:
                for delivery in await member.take(1000, 1.0):
                    numbers[delivery.message.key or b""].append(delivery.message.payload or b"")
                return len(numbers) == 8 and all(found[-1] == b"end" for found in numbers.values())

            await self.until(all_ended)
            for found in numbers.values():
                assert [int(number) for number in found[:-1]] == list(range(len(found) - 1))
                assert len(found) - 1 >= accepted

    # -- closing ----------------------------------------------------------------------------------------------------

    async def test_aclose_twice(self, broker: Broker, topic: str, group: str) -> None:
        """Closing again does nothing; so does a check of a broker that is there."""
        publisher = await broker.publisher(source=SOURCE)
        member = await broker.subscribe(group, [topic])
        for _ in range(2):
            await publisher.aclose()
            await member.aclose()
        await broker.check()

    async def test_ensure_topics_tells_what_it_made(self, broker: Broker, topic: str) -> None:
        new = f"conformance.{secrets.token_hex(8)}"
        assert list(await broker.ensure_topics([topic, new])) == [new]
        assert list(await broker.ensure_topics([topic, new])) == []

    async def test_what_nobody_waits_for(self, broker: Broker, topic: str, group: str) -> None:
        """FAILURES row 18: a broker without history has no place for a message that no group waits for. It is rejected,
        never counted as sent; once a group is there, the same message is accepted and arrives."""
        if broker.capabilities.keeps_history:
            pytest.skip("capabilities.keeps_history is true: a message is kept whether or not somebody waits for it")
        message = make_message(topic, key=b"k")
        async with _publisher(broker) as publisher:
            outcomes = await publisher.publish([message])
            assert isinstance(rejected := outcomes[0], Rejected) and rejected.code == "unroutable"
            async with _member(broker, group, topic) as member:
                assert await publisher.publish([message]) == {}
                assert ids(await self.collect(member, 1)) == Counter([message.event_id])

    # -- waiting for facts ------------------------------------------------------------------------------------------

    async def keep_for(self, broker: Broker, group: str, topic: str) -> None:
        """Have ``topic``'s messages kept for ``group`` from now on: a log does that anyway, a queue once declared."""
        if not broker.capabilities.keeps_history:
            await (await broker.subscribe(group, [topic])).aclose()

    async def until(self, fact: Callable[[], Awaitable[bool]]) -> None:
        """Ask again until ``fact`` is true; fail after ``patience_s``."""
        deadline = time.monotonic() + self.patience_s
        while not await fact():
            assert time.monotonic() < deadline, f"{fact} did not become true in {self.patience_s} s"
            await asyncio.sleep(0.01)

    async def collect(self, member: Subscription, count: int) -> list[Delivery]:
        """Exactly the next ``count`` deliveries."""
        found: list[Delivery] = []

        async def enough() -> bool:
            found.extend(await member.take(count - len(found), 1.0))
            return len(found) >= count

        await self.until(enough)
        return found

    async def collect_both(
        self, one: Subscription, two: Subscription, count: int
    ) -> tuple[list[Delivery], list[Delivery]]:
        """The next ``count`` deliveries that arrive at either."""
        first: list[Delivery] = []
        second: list[Delivery] = []

        async def enough() -> bool:
            first.extend(await one.take(count, 0.1))
            second.extend(await two.take(count, 0.1))
            return len(first) + len(second) >= count

        await self.until(enough)
        return first, second


def ids(deliveries: Iterable[Delivery]) -> Counter[object]:
    return Counter(delivery.message.event_id for delivery in deliveries)


def by_key(messages: Iterable[Message]) -> dict[bytes | None, list[object]]:
    found: dict[bytes | None, list[object]] = defaultdict(list)
    for message in messages:
        found[message.key].append(message.event_id)
    return found


async def _took(member: Subscription) -> bool:
    return bool(await member.take(1, 0.5))


async def _both_have_shards(one: Subscription, two: Subscription) -> bool:
    """Not by takes: nothing must be consumed by looking."""
    return bool(await one.lag()) and bool(await two.lag())


async def _own_all(*members: Subscription) -> bool:
    owned = [set(await member.lag()) for member in members]
    return len(set().union(*owned)) == await members[0].shard_count()


@asynccontextmanager
async def _publisher(broker: Broker, send_timeout_s: float = SEND_TIMEOUT_S) -> AsyncIterator[Publisher]:
    publisher = await broker.publisher(source=SOURCE, send_timeout_s=send_timeout_s)
    try:
        yield publisher
    finally:
        await publisher.aclose()


@asynccontextmanager
async def _member(broker: Broker, group: str, topic: str) -> AsyncIterator[Subscription]:
    member = await broker.subscribe(group, [topic])
    try:
        yield member
    finally:
        await member.aclose()

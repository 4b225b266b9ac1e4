"""The embedded broker beyond what every broker does: its file, retention, several processes."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from relevo.brokers import broker_for
from relevo.brokers.embedded import retention, schema
from relevo.errors import ConfigError, RelevoError
from relevo.outcome import Rejected, Unavailable
from relevo.ports.broker import KeepsPlace
from relevo.testing.broker_processes import make_message, publisher_that_goes_on, running
from tests.support.spending import least_spent
from tests.support.waiting import eventually

SOURCE = "urn:relevo:test"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


def count(path: Path, sql: str, *params: object) -> int:
    connection = sqlite3.connect(path)
    try:
        (found,) = connection.execute(sql, params).fetchone()
        return int(found)
    finally:
        connection.close()


async def take(member: Any, number: int) -> list[Any]:
    """Exactly ``number`` deliveries."""
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number} arrived"
        found.extend(await member.take(number - len(found), 0.5))
    return found


async def test_topics_are_made_when_first_used(path: Path) -> None:
    """``auto_create`` is on unless switched off; ``partitions`` says how many shards a topic gets."""
    broker = broker_for(f"embedded:{path}", {"partitions": 3})
    publisher = await broker.publisher(source=SOURCE)
    assert await publisher.publish([make_message("a.b", key=b"%d" % n) for n in range(30)]) == {}
    member = await broker.subscribe("g", ["a.b", "c.d"])
    assert len(await take(member, 30)) == 30
    assert len(await member.lag()) == 6
    await member.aclose()
    await publisher.aclose()


async def test_positions_that_cannot_be_stored_are_a_problem(path: Path) -> None:
    """Somebody writes to the file for long. Reading works meanwhile; what is settled is stored afterwards."""
    broker = broker_for(f"embedded:{path}", {"partitions": 1, "busy_timeout_s": 0.1})
    publisher = await broker.publisher(source=SOURCE)
    assert await publisher.publish([make_message("a.b", key=b"k")]) == {}
    member = await broker.subscribe("g", ["a.b"])
    assert isinstance(member, KeepsPlace)
    found = await take(member, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    await member.settle(found)
    await eventually(lambda: member.problem is not None, what="it is a problem")
    assert await member.take(1, 0.01) == []
    other.execute("rollback")
    other.close()
    await eventually(lambda: member.problem is None, what="it is none any more")
    await member.aclose()
    again = await broker.subscribe("g", ["a.b"])
    assert await again.lag() == {"a.b/0": 0}
    await again.aclose()
    await publisher.aclose()


async def test_a_killed_publisher_leaves_whole_calls(path: Path) -> None:
    """SIGKILL in the middle of publishing: each call (ten numbers of eight keys) is there as a whole or not at all, and
    positions have no holes."""
    make = functools.partial(broker_for, f"embedded:{path}", {})
    with running(publisher_that_goes_on, make, "a.b") as child:
        deadline = time.monotonic() + 30
        while not await child.said(at_least=50):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        child.kill()
    await make().check()
    total = count(path, "select count(*) from records")
    assert total % 80 == 0
    assert total >= 8 * child.last
    assert count(path, "select sum(next_position) from shards") == total
    records = "(select count(*) from records r where r.shard_id = s.shard_id)"
    gaps = f"select count(*) from shards s where next_position <> {records}"
    assert count(path, gaps) == 0


async def test_retention_removes_what_is_old_and_settled(path: Path) -> None:
    """Only what every group has settled goes, only when it is old, and the next reader is not confused by the hole."""
    broker = broker_for(f"embedded:{path}")
    publisher = await broker.publisher(source=SOURCE)
    assert await publisher.publish([make_message("a.b", key=b"k") for _ in range(10)]) == {}
    slow = await broker.subscribe("slow", ["a.b"])
    await slow.settle((await take(slow, 10))[:4])
    await slow.aclose()
    fast = await broker.subscribe("fast", ["a.b"])
    await fast.settle(await take(fast, 10))
    await fast.aclose()
    connection = schema.connect(path, 5.0)
    try:
        assert retention.purge(connection, 3600.0) is False
        assert count(path, "select count(*) from records") == 10
        retention.purge(connection, 3600.0, now_s=time.time() + 7200)
    finally:
        connection.close()
    assert count(path, "select count(*) from records") == 6
    again = await broker.subscribe("slow", ["a.b"])
    assert [delivery.position for delivery in await take(again, 6)] == [4, 5, 6, 7, 8, 9]
    new = await broker.subscribe("new", ["a.b"])
    assert sum((await new.lag()).values()) == 6
    for closing in (again, new, publisher):
        await closing.aclose()


async def test_retention_goes_on_in_small_batches(path: Path) -> None:
    """More than a batch is removed by several transactions, each of which says that there is more."""
    broker = broker_for(f"embedded:{path}")
    publisher = await broker.publisher(source=SOURCE)
    messages = [make_message("a.b", key=b"k") for _ in range(retention.BATCH + 10)]
    assert await publisher.publish(messages) == {}
    await publisher.aclose()
    connection = schema.connect(path, 5.0)
    try:
        later = time.time() + 7200
        assert retention.purge(connection, 3600.0, now_s=later) is True
        assert retention.purge(connection, 3600.0, now_s=later) is False
    finally:
        connection.close()
    assert count(path, "select count(*) from records") == 0


async def test_a_member_that_was_frozen_settles_nothing(path: Path) -> None:
    """FAILURES row 11: the loop of a member stands still beyond its lease and another takes over. What it settles
    afterwards is refused, and the shard is dropped."""
    broker = broker_for(f"embedded:{path}", {"lease_s": 0.6})
    publisher = await broker.publisher(source=SOURCE)
    assert await publisher.publish([make_message("a.b", key=b"k") for _ in range(5)]) == {}
    frozen = await broker.subscribe("g", ["a.b"])
    taken = await take(frozen, 5)
    frozen._keeper.cancel()  # type: ignore[attr-defined]
    other = await broker.subscribe("g", ["a.b"])
    again = await take(other, 5)
    await frozen.settle(taken)
    await frozen.flush()
    assert not frozen.owns(taken[0])
    assert sum((await other.lag()).values()) == 5
    await other.settle(again[:2])
    await other.flush()
    assert count(path, "select max(committed) from leases") == 2
    for closing in (frozen, other, publisher):
        await closing.aclose()


async def test_a_cancelled_publish_keeps_its_place(path: Path) -> None:
    """Cancelling a call that was handed over does not let a later one of the same key overtake it."""
    broker = broker_for(f"embedded:{path}")
    publisher = await broker.publisher(source=SOURCE)
    first, second = make_message("a.b", key=b"k"), make_message("a.b", key=b"k")
    one = asyncio.create_task(publisher.publish([first]))
    two = asyncio.create_task(publisher.publish([second]))
    await asyncio.sleep(0)  # both have begun
    one.cancel()
    assert await two == {}
    with pytest.raises(asyncio.CancelledError):
        await one
    member = await broker.subscribe("g", ["a.b"])
    arrived = await take(member, 2)
    assert [delivery.message.event_id for delivery in arrived] == [first.event_id, second.event_id]
    await member.aclose()
    await publisher.aclose()


async def test_the_limit_can_be_set(path: Path) -> None:
    broker = broker_for(f"embedded:{path}", {"message_bytes_max": 100})
    assert broker.capabilities.message_bytes_max == 100
    publisher = await broker.publisher(source=SOURCE)
    outcomes = await publisher.publish([make_message("a.b", payload=b"x" * 101), make_message("a.b")])
    assert isinstance(outcomes.pop(0), Rejected)
    assert outcomes == {}
    await publisher.aclose()


async def test_another_programs_file_is_left_alone(path: Path) -> None:
    """A database with other tables is refused in plain words, and not touched; so is a file that is no database."""
    connection = sqlite3.connect(path)
    connection.execute("create table theirs (x)")
    connection.close()
    with pytest.raises(ConfigError, match="another program"):
        await broker_for(f"embedded:{path}").check()
    assert count(path, "select count(*) from sqlite_schema") == 1
    garbage = path.with_name("garbage.db")
    garbage.write_bytes(b"no database at all" * 1000)
    with pytest.raises(ConfigError, match="not a readable SQLite database"):
        await broker_for(f"embedded:{garbage}").check()
    with pytest.raises(ConfigError, match="does not exist"):
        await broker_for(f"embedded:{path.parent}/no/such/folder/b.db").check()


async def test_a_newer_format_is_refused(path: Path) -> None:
    await broker_for(f"embedded:{path}").check()
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="newer Relevo"):
        await broker_for(f"embedded:{path}").check()


async def test_many_processes_may_create_it_at_once(path: Path) -> None:
    """Four processes meet an absent file; all of them publish."""
    make = functools.partial(broker_for, f"embedded:{path}", {})
    with (
        running(publisher_that_goes_on, make, "t.0") as one,
        running(publisher_that_goes_on, make, "t.1") as two,
        running(publisher_that_goes_on, make, "t.2") as three,
    ):
        deadline = time.monotonic() + 30
        while not all([await child.said(at_least=10) for child in (one, two, three)]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    assert count(path, "select count(*) from topics") == 3


async def test_a_waiting_member_costs_next_to_nothing(path: Path) -> None:
    """An idle second of waiting takes less than a tenth of a second of this process's time."""
    broker = broker_for(f"embedded:{path}")
    member = await broker.subscribe("g", ["a.b"])
    await member.take(1, 0.3)

    async def wait() -> None:
        assert await member.take(1, 1.0) == []

    assert await least_spent(wait, 0.1) < 0.1
    await member.aclose()


async def test_closing_the_last_user_closes_the_file(path: Path) -> None:
    """Publisher and subscription share one connection; after both are closed a new one is opened, and works."""
    broker = broker_for(f"embedded:{path}")
    for _ in range(2):
        publisher = await broker.publisher(source=SOURCE)
        member = await broker.subscribe("g", ["a.b"])
        assert await publisher.publish([make_message("a.b")]) == {}
        await publisher.aclose()
        await member.settle(await take(member, 1))
        await member.aclose()
        with pytest.raises(RelevoError):
            await publisher.publish([make_message("a.b")])
        with pytest.raises(RelevoError):
            await member.take(1, 0)


async def test_a_send_waits_as_long_as_it_may(tmp_path: Path) -> None:
    """Another program holds the file's write lock: a publisher gives up after its own time-out, whatever the others of
    this file would wait, and what it could not store is *unavailable*."""
    broker = broker_for(f"embedded:{tmp_path / 'broker.db'}", {"busy_timeout_s": 120.0})
    await broker.ensure_topics(["t"])
    publisher = await broker.publisher(source=SOURCE, send_timeout_s=0.2)
    other = sqlite3.connect(tmp_path / "broker.db", isolation_level=None)
    other.execute("begin immediate")
    try:
        async with asyncio.timeout(60):
            outcomes = await publisher.publish([make_message("t")])
        assert isinstance(outcomes[0], Unavailable)
    finally:
        other.close()
    assert await publisher.publish([make_message("t")]) == {}
    await publisher.aclose()

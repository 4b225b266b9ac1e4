"""The consumer's scripts on both databases: what the engine's own tests do not reach."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from relevo.clients import database_for
from relevo.consumer.availability import Availability
from relevo.consumer.journal import Journal
from relevo.storage import holding, inboxing, journaling, processes
from relevo.storage.holding import Claimed, Head, Lost, Why, key_id
from tests.support.consumers import order
from tests.support.relays import Store


async def test_a_held_message_comes_back_byte_for_byte(store: Store) -> None:
    """Every field survives the queue; the tombstone stays a tombstone; the time keeps what the database can keep."""
    database = database_for(store.settings)
    message = order(1, "k", payload=b"\x00\xff")
    id = key_id("consumer", "billing", message)
    parked = holding.hold(id, message, "s0", 7, state="waiting", why=Why("later"), attempts=2, delay_s=0.0)
    assert await database.run(parked) == "held"
    [claim] = await database.run(holding.claim_due("consumer", "billing", uuid4(), 5.0, 10))
    assert (claim.id, claim.attempts, claim.suspect) == (id, 2, False)
    head = await database.run(holding.head(claim, lease_s=5.0))
    assert isinstance(head, Head)
    assert (head.attempts, head.position, head.shard) == (3, 7, "s0")
    assert abs((head.message.created_at - message.created_at).total_seconds()) < 0.001
    for name in message.__struct_fields__:
        if name != "created_at":
            assert getattr(head.message, name) == getattr(message, name), name
    await database.aclose()


async def test_a_claim_is_exclusive_and_fenced_by_its_epoch(store: Store) -> None:
    """Two processes claim at once: one gets the key. A claim whose epoch is over can neither read nor remove."""
    one, two = database_for(store.settings), database_for(store.settings)
    message = order(1)
    id = key_id("consumer", "billing", message)
    await one.run(holding.hold(id, message, "s0", 1, state="waiting", why=Why("w"), attempts=1, delay_s=0.0))
    claims = await asyncio.gather(
        one.run(holding.claim_due("consumer", "billing", uuid4(), 30.0, 10)),
        two.run(holding.claim_due("consumer", "billing", uuid4(), 30.0, 10)),
    )
    [claim] = [claim for found in claims for claim in found]
    stale = Claimed(claim.id, claim.epoch - 1, claim.attempts, False)
    assert isinstance(await one.run(holding.head(stale, lease_s=5.0)), Lost)
    assert not await one.run(holding.put_back(stale, state="parked", why=Why("x"), attempts=9, delay_s=None))
    assert not await one.run(holding.release(stale, refund=1))
    assert await one.run(holding.counts("consumer", "billing")) == {"draining": 1}
    assert await one.run(holding.put_back(claim, state="parked", why=Why("x"), attempts=9, delay_s=None))
    assert await one.run(holding.next_due("consumer", "billing")) is None
    await one.aclose()
    await two.aclose()


async def test_the_journal_tells_suspects_from_what_was_handed_back(store: Store) -> None:
    """A row of another owner is a suspect, unless the inbox has it or it was handed back; attempts stay known."""
    database = database_for(store.settings)
    dead, living = uuid4(), uuid4()
    crashed, finished, returned, fresh = uuid4(), uuid4(), uuid4(), uuid4()
    taken = [crashed, finished, returned, fresh]
    assert await database.run(journaling.take(database.dialect, "billing", dead, [str(id) for id in taken], [])) == {}
    await database.run(journaling.count("billing", dead, crashed, 2))
    await database.run(journaling.count("billing", dead, returned, 1))
    await database.run(inboxing.insert("billing", finished))
    await database.run(journaling.hand_back("billing", dead, [returned, fresh]))
    found = await database.run(
        journaling.take(database.dialect, "billing", living, [str(id) for id in (*taken, crashed)], [])
    )
    assert found == {crashed: journaling.Found(True, 2), returned: journaling.Found(False, 1)}
    await database.run(journaling.remove("billing", dead, taken))
    assert store.query("select count(*) from relevo_journal") == [(4,)]  # they are the living one's by now
    await database.run(journaling.take(database.dialect, "billing", living, [], [str(id) for id in taken]))
    assert store.query("select count(*) from relevo_journal") == [(0,)]
    await database.aclose()


async def test_what_was_settled_and_comes_again_begins_anew(store: Store) -> None:
    """One write forgets what was settled and writes down what was taken, also where that is the same message: its
    attempts are not counted on. What another process took over meanwhile stays its own."""
    database = database_for(store.settings)
    available = Availability(database, "billing", lambda reason: None, idle_timeout_s=5.0)
    mine, other = Journal("billing", uuid4(), available), Journal("billing", uuid4(), available)
    again, once, moved = str(uuid4()), str(uuid4()), str(uuid4())
    assert await mine.taken([again, once, moved]) == {}
    await mine.count(UUID(again), 3)
    assert await other.taken([moved]) == {UUID(moved): journaling.Found(True, 0)}
    for event_id in (again, once, moved):
        mine.settled(event_id)
    assert await mine.taken([again]) == {}
    rows = store.query("select cast(event_id as text), attempts from relevo_journal")
    assert sorted(rows) == sorted([(again, 0), (moved, 0)])
    mine.settled(again)
    assert await mine.taken([once]) == {}
    assert {event_id for (event_id,) in store.query("select cast(event_id as text) from relevo_journal")} == {
        once,
        moved,
    }
    await available.aclose()
    await database.aclose()


async def test_processes_register_renew_and_leave(store: Store) -> None:
    """Rows of live processes only; the topics of a consumer are there for the warning in `status`."""
    database = database_for(store.settings)
    mine, expired = uuid4(), uuid4()
    for process_id, lease_s in ((mine, 30.0), (mine, 30.0), (expired, -1.0)):
        await database.run(
            processes.register(
                process_id,
                "consumer",
                "billing",
                host="here",
                pid=7,
                version="0",
                topics=["a", "b"],
                detail={"in_flight": 3},
                lease_s=lease_s,
            )
        )
    [process] = await database.run(processes.live("consumer"))
    assert (process.process_id, process.topics, process.detail) == (mine, ("a", "b"), {"in_flight": 3})
    assert await database.run(processes.live("relay")) == []
    await database.run(processes.leave(mine))
    assert await database.run(processes.live()) == []
    await database.aclose()

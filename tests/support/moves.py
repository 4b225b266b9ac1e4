"""What came out of the broker after the source was moved, against what was written: whatever is missing, came twice or
out of order is told with where it stood in the table and what the tables were read by when it was committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

from relevo import Outbox
from relevo.brokers import broker_for
from relevo.ids import uuid7
from relevo.message import Message
from relevo.ops.moving_wal import WalSide
from relevo.ports.database import Database
from relevo.script import Script
from relevo.settings import Settings
from tests.support.relays import Store
from tests.support.waiting import eventually

WAYS = [("mark", "wal"), ("log", "wal"), ("wal", "mark"), ("wal", "log")]
"""From, and to."""
SLOTS = "select count(*) from pg_replication_slots where database = current_database()"
WHERE = """
select encode(o.payload, 'escape')::bigint, o.seq, o.tx::text, o.settled_at::text, o.outcome,
       pg_xact_commit_timestamp(o.tx::xid)::text,
       coalesce((select string_agg(a.filter ->> 'to', ' ' order by a.audit_id) from relevo_audit a
                 where a.action = 'source.move' and pg_xact_commit_timestamp(a.xmin)
                       < pg_xact_commit_timestamp(o.tx::xid)), '(the first)')
from relevo_outbox o where encode(o.payload, 'escape')::bigint = any (array{numbers}::bigint[]) order by o.seq
"""
"""Needs ``track_commit_timestamp``. The moves are told in order: the last one is what was in force."""


def source(store: Store) -> str:
    return str(store.query("select source from relevo_meta")[0][0])


@dataclass
class Account:
    """``found``: (key, payload) in order of arrival, repeats included."""

    written: list[int]
    found: list[tuple[bytes | None, int]] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        return sorted(set(self.written) - {payload for _, payload in self.found})

    @property
    def repeated(self) -> list[int]:
        return self._again(payload for _, payload in self.found)

    @property
    def strange(self) -> list[int]:
        return sorted({payload for _, payload in self.found} - set(self.written))

    @property
    def passed(self) -> list[int]:
        """What came, for the first time, after something newer of its key."""
        newest: dict[bytes | None, int] = {}
        known: set[int] = set()
        found = []
        for key, payload in self.found:
            if payload not in known and payload < newest.get(key, -1):
                found.append(payload)
            known.add(payload)
            newest[key] = max(newest.get(key, -1), payload)
        return found

    @staticmethod
    def _again(payloads: Iterable[int]) -> list[int]:
        known: set[int] = set()
        again: set[int] = set()
        for payload in payloads:
            (again if payload in known else known).add(payload)
        return sorted(again)

    def explain(self, store: Store) -> str:
        """Empty if all came once and in order."""
        lines = []
        for what in ("missing", "repeated", "strange", "passed"):
            numbers: list[int] = getattr(self, what)
            if numbers:
                lines.append(f"{what}: {len(numbers)}: {numbers[:200]}")
                lines += [
                    f"  payload {row[0]}: seq {row[1]}, tx {row[2]}, committed {row[5]} after the moves {row[6]}; "
                    f"settled {row[3]} as {row[4]}"
                    for row in store.query(WHERE.format(numbers=numbers[:20]))
                ]
        if lines:
            moves = store.query(
                "select filter ->> 'to', xmin::text, pg_xact_commit_timestamp(xmin)::text, count from relevo_audit "
                "where action = 'source.move' order by audit_id"
            )
            lines += [f"  moved to {row[0]} by tx {row[1]} at {row[2]}, {row[3]} marked" for row in moves]
        return "\n".join(lines)


async def account(settings: Settings, topic: str, written: Iterable[int], timeout_s: float = 30.0) -> Account:
    """Read the broker to its end: until all that was written came, or ``timeout_s`` are over, and nothing comes."""
    subscription = await broker_for(settings.broker.url, {}).subscribe("reader", [topic])
    result = Account(sorted(written))
    wanted, known = set(result.written), set[int]()

    async def ended() -> bool:
        taken = await subscription.take(1000, 0.1)
        found = [(each.message.key, int(each.message.payload or b"")) for each in taken]
        result.found.extend(found)
        known.update(payload for _, payload in found)
        await subscription.settle(taken)
        return not taken and wanted <= known

    try:
        await eventually(ended, what="all arrived", timeout_s=timeout_s)
    except AssertionError:
        pass  # ``explain`` tells what did not
    finally:
        await subscription.aclose()
    return result


def emit(connection: psycopg.Connection, number: int, key: bytes = b"0", topic: str = "shop.order") -> None:
    """An event without a table, in the transaction of ``connection``."""
    message = Message(
        event_id=uuid7(),
        type=topic,
        topic=topic,
        payload=str(number).encode(),
        created_at=datetime.now(UTC),
        key=key,
    )
    Outbox(table=False).add_message(connection, message)


class Killed(BaseException):
    """What ``Dying`` raises: nothing may handle it."""


class Dying:
    """A database whose user dies at one call, before it or with its commit behind it, as far as the server can tell:
    whatever is asked afterwards, to tidy up, is not heard."""

    def __init__(self, database: Database, at: int, *, committed: bool) -> None:
        self.calls = 0
        self._database = database
        self._at = at
        self._committed = committed

    @property
    def dead(self) -> bool:
        return self.calls >= self._at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def run(self, script: Script[Any], **how: Any) -> Any:
        self.calls += 1
        if self.calls == self._at and self._committed:
            await self._database.run(script, **how)
        if self.dead:
            raise Killed
        return await self._database.run(script, **how)


def side_of(database: Database, settings: Settings, report: Callable[[str], None] = lambda text: None) -> WalSide:
    """One half of a move, alone, with nothing to renew and nobody to be afraid of."""

    async def keep() -> None: ...

    def hold() -> Script[None]:
        yield from ()

    return WalSide(database, settings, uuid7(), keep, hold, report, settings.relay.lease_s)

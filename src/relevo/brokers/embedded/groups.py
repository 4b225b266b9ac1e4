"""Groups: who is there, who owns which shard, and how far each shard was settled.

Ownership needs no coordinator. Each member looks at the group every third of its lease: it removes members that were
silent for too long, takes free shards up to its fair share, and learns which of its own exceed the share, to give them
back when it has finished there. Statements on one connection; each function is one write transaction.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from relevo.brokers.embedded import clock
from relevo.brokers.embedded.file import writing


@dataclass(frozen=True, slots=True)
class Owned:
    """A shard that is ours. ``committed``: the position to begin with. ``end``: the next one to be given out."""

    shard_id: int
    topic: str
    part: int
    committed: int
    generation: int
    end: int


@dataclass(frozen=True, slots=True)
class View:
    """The group as a member saw it. ``excess``: shards of ours that others should have."""

    epoch: int
    owned: Sequence[Owned]
    excess: Collection[int]
    missing: Collection[str]


def look(
    connection: sqlite3.Connection, group: str, member: str, topics: Sequence[str], *, lease_s: float, from_start: bool
) -> View:
    """Renew ``member`` (or let it join), remove the dead, take what is free and due to us."""
    with writing(connection):
        now_ms = clock.now_ms(connection)
        connection.execute(
            "insert into groups (group_name, epoch, created_ms) values (?, 0, ?) on conflict do nothing",
            (group, now_ms),
        )
        changed = _remove_dead(connection, group, member, now_ms)
        changed |= _renew(connection, group, member, topics, now_ms + int(lease_s * 1000))
        changed |= _add_leases(connection, group, topics, from_start)
        excess: set[int] = set()
        missing: list[str] = []
        for topic in topics:
            rows = connection.execute(
                "select l.shard_id, l.member from leases l join shards s using (shard_id)"
                " where l.group_name = ? and s.topic = ? order by s.part",
                (group, topic),
            ).fetchall()
            if not rows:
                missing.append(topic)
            share = _share(_members_of(connection, group, topic), member, topic, len(rows))
            ours = [shard_id for shard_id, owner in rows if owner == member]
            free = [shard_id for shard_id, owner in rows if owner is None]
            excess.update(ours[share:])
            for shard_id in free[: max(share - len(ours), 0)]:
                connection.execute(
                    "update leases set member = ?, generation = generation + 1 where group_name = ? and shard_id = ?",
                    (member, group, shard_id),
                )
        if changed:
            _move_epoch(connection, group)
        return View(epoch(connection, group), _owned(connection, group, member), excess, missing)


def epoch(connection: sqlite3.Connection, group: str) -> int:
    row = connection.execute("select epoch from groups where group_name = ?", (group,)).fetchone()
    return int(row[0]) if row else -1


def commit(
    connection: sqlite3.Connection, group: str, member: str, positions: Iterable[tuple[int, int, int]]
) -> Collection[int]:
    """Store how far shards were settled, as (shard_id, generation, position); the shards that are not ours any more, of
    which nothing was stored."""
    with writing(connection):
        return [
            shard_id
            for shard_id, generation, position in positions
            if not connection.execute(
                "update leases set committed = max(committed, ?)"
                " where group_name = ? and shard_id = ? and member = ? and generation = ?",
                (position, group, shard_id, member, generation),
            ).rowcount
        ]


def release(
    connection: sqlite3.Connection,
    group: str,
    member: str,
    positions: Iterable[tuple[int, int, int]],
    *,
    leave: bool,
) -> None:
    """As ``commit``, and give these shards back; ``leave``: the member goes, with all it has."""
    with writing(connection):
        for shard_id, generation, position in positions:
            connection.execute(
                "update leases set committed = max(committed, ?), member = null, generation = generation + 1"
                " where group_name = ? and shard_id = ? and member = ? and generation = ?",
                (position, group, shard_id, member, generation),
            )
        if leave:
            _remove(connection, group, [member])
        _move_epoch(connection, group)


def _remove_dead(connection: sqlite3.Connection, group: str, member: str, now_ms: int) -> bool:
    rows = connection.execute(
        "select member from members where group_name = ? and member <> ? and expires_ms < ?", (group, member, now_ms)
    ).fetchall()
    return _remove(connection, group, [dead for (dead,) in rows])


def _remove(connection: sqlite3.Connection, group: str, members: Sequence[str]) -> bool:
    for member in members:
        connection.execute("delete from members where group_name = ? and member = ?", (group, member))
        connection.execute(
            "update leases set member = null, generation = generation + 1 where group_name = ? and member = ?",
            (group, member),
        )
    return bool(members)


def _renew(connection: sqlite3.Connection, group: str, member: str, topics: Sequence[str], expires_ms: int) -> bool:
    renewed = connection.execute(
        "update members set expires_ms = ? where group_name = ? and member = ?", (expires_ms, group, member)
    ).rowcount
    if renewed:
        return False
    connection.execute(
        "insert into members (group_name, member, topics, joined, expires_ms)"
        " select ?, ?, ?, coalesce(max(joined), 0) + 1, ? from members where group_name = ?",
        (group, member, json.dumps(list(topics)), expires_ms, group),
    )
    return True


def _add_leases(connection: sqlite3.Connection, group: str, topics: Sequence[str], from_start: bool) -> bool:
    """A topic made after the group is read from its start in any case: nobody can have meant to skip any of it."""
    added = 0
    for topic in topics:
        added += connection.execute(
            "insert into leases (group_name, shard_id, committed)"
            " select g.group_name, s.shard_id,"
            " case when ? or t.created_ms > g.created_ms then 0 else s.next_position end"
            " from shards s join topics t using (topic) join groups g on g.group_name = ?"
            " where s.topic = ? on conflict do nothing",
            (from_start, group, topic),
        ).rowcount
    return added > 0


def _members_of(connection: sqlite3.Connection, group: str, topic: str) -> Sequence[str]:
    rows = connection.execute(
        "select member from members where group_name = ?"
        " and exists (select 1 from json_each(topics) where value = ?) order by joined, member",
        (group, topic),
    ).fetchall()
    return [member for (member,) in rows]


def _share(members: Sequence[str], member: str, topic: str, shards: int) -> int:
    """How many of a topic's shards are due to ``member``. What does not divide goes to different members for different
    topics, and moves little: members are in the order they joined."""
    place = (members.index(member) + zlib.crc32(topic.encode())) % len(members)
    return shards // len(members) + (place < shards % len(members))


def _owned(connection: sqlite3.Connection, group: str, member: str) -> Sequence[Owned]:
    rows = connection.execute(
        "select l.shard_id, s.topic, s.part, l.committed, l.generation, s.next_position"
        " from leases l join shards s using (shard_id)"
        " where l.group_name = ? and l.member = ? order by s.topic, s.part",
        (group, member),
    ).fetchall()
    return [Owned(*row) for row in rows]


def _move_epoch(connection: sqlite3.Connection, group: str) -> None:
    connection.execute("update groups set epoch = epoch + 1 where group_name = ?", (group,))

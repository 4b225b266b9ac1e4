"""Who executes which statement of the catalog on PostgreSQL. ``tests/edges/test_statement_faults.py`` reads this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.statement_ways import BYTES_MAX

_ALL = """
    destinations.forget duty.done duty.leave duty.leave_one duty.lock duty.take held.add_key held.among
    held.append held.lock_key held.lock_key_soon held.next_due held.renew
    inbox.find inbox.insert_live inbox.insert_soon inbox.insert_many inbox.together
    inbox.undo journal.purge journal.remove journal.take lanes.acquire lanes.count lanes.release lanes.renew
    letters.add letters.page letters.sent letters.waiting meta.read meta.system_id moving.stands pause.all
    performing.claim performing.expire performing.finish performing.sent process.forget_dead process.leave
    process.live process.register purge.consumers purge.delete purge.effects_delete purge.inbox_delete
    purge.now relay_held.load relays.living scheduled.move scheduled.next_due
"""
"""What a relay, a consumer with effects and their care execute, whatever the source and the broker."""
_DRAIN = """
    held.advance held.claim held.count held.due held.first held.remove_key held.remove_message
"""
_KEPT = """
    performing.release performing.unsent scheduled.aside scheduled.due scheduled.move_some
"""
"""With scheduled messages that cannot be moved, and acts that cannot begin."""
_ARCHIVE = """
    purge.archive
"""
_PARTITIONS = """
    partition.cut partition.drop partition.inside partition.list partition.prove partition.scan
"""
_LOG = """
    lanes.lock log.add_groups log.drop_groups log.load log.look log.page log.save log.window
"""
_MARK = """
    lanes.lock mark.free mark.horizon mark.settle mark.take mark.xid
"""
_WAL = """
    wal.high_water wal.lease wal.leave wal.names wal.passed wal.position wal.save wal.server wal.slot
    wal.snapshot wal.terminate_former wal.timeline
"""
_GROUPS = """
    groups.acquire groups.bury groups.create groups.create_topics groups.join
    groups.lag groups.leave groups.living groups.page groups.place
    groups.release groups.renew groups.save log.load log.save log.window
"""
_CALLER = """
    append.copy append.find append.one effect.record letters.by_consumer scheduled.add
    scheduled.cancel scheduled.find wal.emit
"""
_OPERATOR = """
    audit.add bench.facts bench.newest bench.remove dlq.forgotten effects.counts effects.list effects.resolve
    effects.show grants.consumer grants.keeper grants.operator grants.reader grants.relay grants.writer
    groups.behind groups.drop groups.history groups.history_begin groups.history_end groups.listed groups.names
    held.counts job.advance job.cancel job.create job.finish job.list job.lock job.state job.unfinished
    log.begin_lanes log.here log.pending mark.open meta.applied meta.create_migration meta.create_schema
    meta.lock meta.moved meta.record meta.table_exists meta.write meta.write_system moving.begun moving.close
    moving.cursors moving.forget_cursors moving.lanes moving.lock_lanes moving.mark moving.open moving.place
    moving.rebase moving.relays moving.release moving.same_system moving.size moving.switch moving_wal.copy
    moving_wal.flush moving_wal.flushed moving_wal.keys moving_wal.mark moving_wal.newest moving_wal.older
    moving_wal.open_log moving_wal.open_mark moving_wal.page moving_wal.publish moving_wal.say
    moving_wal.share_lanes moving_wal.take moving_wal.top moving_wal.xmin parked.count parked.drop
    parked.forget parked.free parked.groups parked.live parked.lock parked.of_event parked.page parked.queue
    parked.replace parked.touch pause.add pause.remove purge.count purge.effects_count purge.inbox_count
    replay.advance replay.claim replay.count replay.create replay.end replay.fail replay.failed_ids
    replay.failures replay.find replay.keep replay.keep_no_more replay.mended replay.next_generation
    replay.page replay.release replay_keys.hold replay_keys.let_go replay_keys.live replay_keys.lock
    replay_keys.running replay_keys.still_ours status.destinations status.held status.hidden_sessions
    status.lanes status.oldest status.pending status.scheduled status.transactions wal.begin
    wal.create_failover_slot wal.create_slot wal.drop_publication wal.drop_slot wal.forget wal.recover
    wal.slots wal.system wal.terminate
"""
_REFUSED = """
    letters.refused mark.hold relay_held.due relay_held.heads relay_held.key relay_held.lock relay_held.remove
    relay_held.rest relay_held.settle
"""
"""With a broker that takes small messages only."""
_REFUSED_WAL = """
    wal.hold wal.hold_keys wal.lock_keys
"""
_HARD = """
    destinations.pause destinations.resume held.later held.put_back held.release inbox.bound_idle inbox.find_many
    inbox.identity inbox.insert inbox.lock_timeout inbox.read_only inbox.take_back journal.count
    journal.forget_fresh journal.hand_back performing.hang
"""
"""With handlers that are slow and fail, commits of unknown end, stops in the middle, and a broker that is away."""
_STRICT = """
    groups.topics_known
"""
"""Topics are made by hand."""
_MOVED = """
    append.many groups.append_nothing
"""
"""The broker is the PostgreSQL of another database."""


@dataclass(frozen=True)
class Kind:
    """A world. ``once``: its statements that no world before it has. ``slow``: struck by answers that do not come.
    ``options``: of its broker. ``hard``: see ``_HARD``."""

    source: str
    broker: str
    statements: tuple[str, ...]
    once: tuple[str, ...]
    slow: tuple[tuple[str, str], ...] = ()
    retention: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    hard: bool = False


def _worlds() -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    seen: set[str] = set()
    for name, source, broker, text, slow in (
        ("log", "log", "embedded", _ALL + _DRAIN + _LOG, (("log.save", "late"),)),
        ("mark", "mark", "embedded", _ALL + _DRAIN + _MARK, ()),
        ("wal", "wal", "embedded", _ALL + _DRAIN + _WAL, ()),
        ("groups", "log", "postgres", _ALL + _GROUPS, ()),
    ):
        statements = tuple(sorted(set(text.split())))
        found[name] = Kind(source, broker, statements, tuple(each for each in statements if each not in seen), slow)
        seen |= set(statements)
    days = 1 / 86_400
    for name, text, retention in (
        ("kept", _KEPT, {}),
        ("archive", _ARCHIVE, {"then": "archive", "outbox_days": days}),
        ("partitions", _PARTITIONS, {"then": "partitions", "outbox_days": days, "partition_days": days}),
    ):
        statements = tuple(text.split())
        found[name] = Kind("log", "embedded", statements, statements, (), retention)
    small = {"message_bytes_max": BYTES_MAX}
    for name, source, broker, text, options in (
        ("refused", "log", "embedded", _REFUSED, small),
        ("refused-wal", "wal", "embedded", _REFUSED_WAL, small),
        ("hard", "log", "embedded", _HARD, {}),
        ("strict", "log", "postgres", _STRICT, {"auto_create": False}),
        ("moved", "log", "another postgres", _MOVED, {}),
    ):
        statements = tuple(text.split())
        found[name] = Kind(source, broker, statements, statements, options=options, hard=name == "hard")
    return found


WORLDS = _worlds()
ELSEWHERE = {
    **dict.fromkeys(_CALLER.split(), "on the application's own handle: its transaction fails, and it is told"),
    **dict.fromkeys(_OPERATOR.split(), "by a command, or a job of one that is taken up again: the person is told"),
    "inbox.idle_since": "about a handler's statement that hangs: test_hung_statements.py",
}
STAYS_READY = {
    **dict.fromkeys(
        ("inbox.together", "inbox.insert_many", "inbox.lock_timeout", "inbox.take_back", "held.among"),
        "of a batch: its messages run one by one instead",
    ),
    "performing.hang": "the claim's lease says too that the act still runs",
    "wal.terminate_former": "the relay waits for the end of the other reader, for ten seconds",
}
"""Statements that fail for long while the process stays ready, and why: what they are for is done in another way."""
PARKS = ("held.advance", "held.remove_message")
"""Executed behind the handler, in its transaction. A failure there that comes again and again while the database can
write elsewhere is due to what the handler did, and parks the message as its policy says."""
CONFLICTS = {"40001", "40P01", "55P03"}
"""Of a transaction that met another one: it runs again, and the process stays ready."""
MEETS = ("held.lock_key_soon", "inbox.bound_idle", "inbox.insert_live", "inbox.insert_soon")
"""Executed before the handler, where processes meet; what conflicts again and again is counted, and parks."""
HIDDEN = ("partition.prove",)
"""Executed once in the life of a table, when its first partition is cut, so a world cannot have it fail again."""
AT_STOPS = ("held.release", "journal.forget_fresh", "journal.hand_back")
"""Executed by a stop only, in the worlds here."""

"""The status for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from relevo.cli.output import table
from relevo.ops.status_report import Consumer, ConsumerGroup, Paused, Relay, Status
from relevo.printable import printable


def render(report: Status) -> RenderableType:
    """Tables for what there is; nothing for what there is not."""
    parts: list[RenderableType] = [_summary(report)]
    parts += _table(
        "relays",
        ["name", "host", "pid", "version", "up", "lanes", "epochs"],
        (
            [r.name, r.host, str(r.pid), r.version, duration(r.age_s), str(r.lanes), _range(r.epoch_min, r.epoch_max)]
            for r in report.relays
        ),
    )
    if any(r.passing for r in report.relays):
        parts.append("consumers read this outbox themselves: relays move nothing, they do the chores")
    parts += groups_table(report.groups)
    parts += _table(
        "paused destinations",
        ["topic", "for", "reason"],
        ([d.topic, duration(d.paused_s), d.reason] for d in report.destinations_paused),
    )
    parts += _table(
        "paused by people",
        ["what", "name", "of", "for", "who", "why"],
        ([p.kind, p.name, _place(p), duration(p.paused_s), p.who, p.why] for p in report.paused),
    )
    parts += _table(
        "held keys",
        ["side", "consumer", "topic", "state", "keys", "messages", "oldest"],
        (
            [
                h.side,
                h.consumer,
                h.topic,
                h.state,
                str(h.keys),
                _count(h.messages, h.messages_capped),
                duration(h.oldest_age_s),
            ]
            for h in report.held
        ),
    )
    parts += _table(
        "effects that are not done",
        ["effect", "state", "count", "oldest"],
        ([e.name, e.state, str(e.count), duration(e.oldest_age_s)] for e in report.effects),
    )
    parts += _table(
        "dead letters that are not published yet",
        ["consumer", "count", "refused", "oldest", "problem"],
        (
            [each.consumer, str(each.count), str(each.refused), duration(each.oldest_age_s), each.problem or ""]
            for each in report.dead_letters
        ),
    )
    parts += _table(
        "consumers",
        ["name", "host", "pid", "version", "up", "topics", "lag"],
        (
            [
                c.name,
                c.host,
                str(c.pid),
                c.version,
                duration(c.age_s),
                ", ".join(c.topics),
                "unknown" if c.lag is None else str(c.lag),
            ]
            for c in report.consumers
        ),
    )
    parts += _table("last successes", ["process", "what", "last success", "waits for the next"], _ages(report))
    parts += _table("what does not work", ["process", "what", "why"], _problems(report))
    parts += _table(
        "partitions of the outbox",
        ["name", "rows", "MB", "oldest", "state"],
        (
            [
                p.name,
                f"{p.rows:,}",
                f"{p.size_bytes / 1e6:,.1f}",
                "-" if p.oldest_age_s is None else duration(p.oldest_age_s),
                "open" if p.open else "has pending messages" if p.unsettled else "closed",
            ]
            for p in report.partitions
        ),
    )
    parts += [f"[bold yellow]warning:[/] {escape(printable(warning))}" for warning in report.warnings]
    return Group(*parts)


def groups_table(groups: Sequence[ConsumerGroup]) -> list[Table]:
    """Also for ``relevo groups list``."""
    return _table(
        "groups that read the outbox",
        ["name", "processes", "behind", "oldest", "place stored", "topics"],
        (
            [
                g.name,
                str(g.members),
                _count(g.behind, g.behind_capped),
                "-" if g.oldest_age_s is None else duration(g.oldest_age_s),
                "-" if g.moved_age_s is None else f"{duration(g.moved_age_s)} ago",
                ", ".join(g.topics),
            ]
            for g in groups
        ),
    )


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``5 h 12 min``, ``3 d 4 h``."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    for unit, size, small, small_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small_size} {small}"
    return f"{whole} s"


def _summary(report: Status) -> Table:
    pending = _count(report.pending.count, report.pending.count_capped)
    if report.pending.oldest_age_s is not None:
        pending += f", oldest {duration(report.pending.oldest_age_s)}"
    grid = Table.grid(padding=(0, 2))
    rows = [
        ("database", f"{report.database}, schema version {report.schema_version}, source {report.source}"),
        ("pending", pending),
        ("lanes", f"{report.lanes.total - report.lanes.free} of {report.lanes.total} owned"),
    ]
    if report.scheduled.next_due_s is not None:
        due = report.scheduled.next_due_s
        when = f"first in {duration(due)}" if due >= 0 else f"first is {duration(-due)} late"
        rows.append(("scheduled", f"{_count(report.scheduled.count, report.scheduled.count_capped)}, {when}"))
    for name, value in rows:
        grid.add_row(f"[bold]{name}[/]", escape(printable(value)))
    return grid


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Table]:
    made = table(columns, rows, title=title, header_style="dim")
    return [made] if made.row_count else []


def _processes(report: Status) -> Iterable[Relay | Consumer]:
    yield from report.relays
    yield from report.consumers


def _ages(report: Status) -> Iterable[Sequence[str]]:
    for process in _processes(report):
        for what, age in process.ages.items():
            ago = age.get("age_s")
            yield [process.name, what, "none yet" if ago is None else f"{duration(ago)} ago", _waits(age)]


def _waits(age: Mapping[str, Any]) -> str:
    """How long for the next success, and the limit. What has nothing to do is not late, however long ago it did it."""
    waiting, limit = age.get("waiting_s"), age.get("limit_s")
    if waiting is None:
        return "nothing to do"
    return f"{duration(waiting)}{' of ' + duration(limit) if limit is not None else ''}"


def _problems(report: Status) -> Iterable[Sequence[str]]:
    for process in _processes(report):
        for what, why in process.problems.items():
            yield [process.name, what, why]
    for consumer in report.consumers:
        if consumer.waits_for is not None:
            yield [consumer.name, "assignment", consumer.waits_for]
        for notice in consumer.notices:
            yield [consumer.name, "positions", notice]


def _place(paused: Paused) -> str:
    if paused.kind != "key":
        return ""
    return f"{paused.topic} at {paused.consumer}" if paused.consumer else f"{paused.topic} at the relays"


def _count(count: int, capped: bool) -> str:
    return f"{count:,}{'+' if capped else ''}"


def _range(low: int | None, high: int | None) -> str:
    if low is None:
        return "-"
    return str(low) if low == high else f"{low}-{high}"

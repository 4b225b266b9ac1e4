"""A small PostgreSQL and relays that read it through ``sources.log.windows``, at the grain of single statements.

A *tape* of integers decides who does what next, so that Hypothesis can shrink a schedule. Wrong rules are switched on
by name (``Model.wrong``): what the model cannot notice, it does not prove.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from relevo.sources.log.windows import Name, Part, Reader, Windows
from relevo.storage.cursors import EVERY, Cursor, settled, snapshot

LANES, KEYS, TOPICS = 4, 6, ("a", "b")


@dataclass(frozen=True)
class Row:
    seq: int
    xid: int
    key: int

    @property
    def lane(self) -> int:
        return self.key % LANES

    @property
    def topic(self) -> str:
        return TOPICS[self.key % len(TOPICS)]


@dataclass
class Tape:
    """Decisions; once it is over, everything answers 0."""

    numbers: Sequence[int]
    place: int = 0

    def pick(self, count: int) -> int:
        if self.place >= len(self.numbers):
            return 0
        self.place += 1
        return self.numbers[self.place - 1] % count

    @property
    def over(self) -> bool:
        return self.place >= len(self.numbers)


@dataclass
class Writer:
    """One open transaction: an xid, the keys it has locked, its rows."""

    xid: int
    rows: list[Row] = field(default_factory=list)


@dataclass
class Lane:
    epoch: int = 0
    cursors: dict[str, Cursor] = field(default_factory=lambda: {EVERY: Cursor()})


@dataclass
class Postgres:
    wrong: frozenset[str]
    xid: int = 100
    completed: int = 99
    seq: int = 0
    running: set[int] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)
    marked: set[int] = field(default_factory=set)
    lanes: list[Lane] = field(default_factory=lambda: [Lane() for _ in range(LANES)])

    def begin(self) -> int:
        self.xid += 1
        self.running.add(self.xid)
        return self.xid

    def end(self, xid: int) -> None:
        self.running.remove(xid)
        self.completed = max(self.completed, xid)

    def commit_alone(self) -> None:
        """A whole transaction of Relevo's: its own xid opens the next window."""
        self.end(self.begin())

    def snapshot(self) -> str:
        """As PostgreSQL makes it: xmax is one past the highest xid that *completed*."""
        xmax = self.completed + 1
        running = () if "replica" in self.wrong else sorted(xid for xid in self.running if xid < xmax)
        return f"{min(running, default=xmax)}:{xmax}:{','.join(map(str, running))}"

    def page(self, lanes: Collection[int], reader: Reader, window: str, cap: int, limit: int) -> tuple[list[Row], bool]:
        cursor, s1, s2 = reader.cursor, snapshot(reader.cursor.snapshot), snapshot(window)
        ours = [
            row
            for row in sorted(self.rows, key=lambda row: row.seq)
            if row.lane in lanes
            and row.seq not in self.marked
            and (row.topic == reader.group if reader.group != EVERY else row.topic not in reader.without)
        ]
        if "gated" in self.wrong:  # a cursor that stops at the oldest running transaction
            found = [row for row in ours if row.seq > cursor.high_water and row.xid < s2.xmin]
            return found[:limit], len(found) > limit
        late = [
            row
            for row in ours
            if cursor.position < row.seq <= cursor.high_water and s2.shows(row.xid) and not s1.shows(row.xid)
        ]
        if "no_late" in self.wrong:  # a plain cursor by seq
            late = []
        main = [row for row in ours if cursor.high_water < row.seq <= cap and s2.shows(row.xid)]
        if "cut_late" in self.wrong:  # the page is cut, and closes its window all the same
            late = late[: limit - 1]
        found = [*late, *main]
        return found[:limit], len(found) >= limit

    def save(self, lanes: Collection[int], group: str, cursor: Cursor) -> None:
        if "shared_row" in self.wrong:  # the row of a cohort moves for every lane that points at it, read or not
            lanes = [lane for lane in range(LANES) if self.lanes[lane].cursors.get(EVERY) in self.before(lanes)]
        for lane in lanes:
            if group in self.lanes[lane].cursors:
                self.lanes[lane].cursors[group] = cursor

    def before(self, lanes: Collection[int]) -> list[Cursor]:
        return [self.lanes[lane].cursors[EVERY] for lane in lanes]


class Relay:
    """``run`` is a generator; at every ``yield`` others may act, or this one may die."""

    def __init__(self, model: Model) -> None:
        self.model, self.db = model, model.db
        self.windows = model.windows_kind()
        self.epochs: dict[int, int] = {}
        self.acquired: dict[int, int] = {}
        self.paused: frozenset[str] = frozenset()
        self.stored: dict[Name, Cursor] = {}
        self.pages: list[tuple[list[Part], list[Row]]] = []
        self.turn: Iterator[None] = self.run()

    def take_over(self, lanes: Collection[int]) -> None:
        """Acquire: from now on every settle of the last owner is refused. Read from when nothing is in flight."""
        for lane in lanes:
            self.db.lanes[lane].epoch += 1
            self.acquired[lane] = self.db.lanes[lane].epoch
        self.db.commit_alone()

    def mine(self) -> set[int]:
        """The lanes that are read; every statement asks for them again."""
        return {lane for lane, epoch in self.epochs.items() if self.db.lanes[lane].epoch == epoch}

    def owned(self) -> set[int]:
        both = {**self.epochs, **self.acquired}
        return {lane for lane, epoch in both.items() if self.db.lanes[lane].epoch == epoch}

    def load(self) -> None:
        self.pages.clear()
        self.windows = self.model.windows_kind()
        self.stored = {
            (lane, group): cursor for lane in self.epochs for group, cursor in self.db.lanes[lane].cursors.items()
        }
        if "forget_window" in self.model.wrong:  # the position without the snapshot it belongs to
            self.stored = {
                name: Cursor(self.db.snapshot(), cursor.high_water, self.db.snapshot(), cursor.position)
                if cursor.window
                else cursor
                for name, cursor in self.stored.items()
            }
        self.windows.assign(self.stored)

    def run(self) -> Iterator[None]:
        tape = self.model.tape
        while True:
            if self.acquired or self.epochs.keys() != {lane for lane, _ in self.stored}:
                while self.pages:
                    yield from self.carry()
                acquired, self.acquired = self.acquired, {}
                self.epochs |= acquired
                self.load()
            yield
            if self.pages and (len(self.pages) > 1 or tape.pick(2) == 0):
                yield from self.carry()
                continue
            if self.windows.behind or self.regroup_due():
                if self.pages:
                    yield from self.carry()
                    continue
                if self.windows.behind:
                    self.windows.rewind()
                self.regroup()
            yield from self.read()

    def regroup_due(self) -> bool:
        return bool(self.windows.splits(self.paused) or self.windows.joins(self.paused)[1])

    def regroup(self) -> None:
        if self.mine() != self.epochs.keys():
            return
        names = self.windows.splits(self.paused)
        cursors, gone = self.windows.joins(self.paused)
        if not names and not gone:
            return
        for (lane, group), cursor in names.items():
            self.db.lanes[lane].cursors[group] = cursor
        for lane, cursor in cursors.items():
            self.db.lanes[lane].cursors[EVERY] = cursor
        for lane, group in gone:
            del self.db.lanes[lane].cursors[group]
        self.db.commit_alone()
        self.load()

    def read(self) -> Iterator[None]:
        windows, db = self.windows, self.db
        s2, top = db.snapshot(), db.seq if self.model.tape.pick(2) else 0
        yield
        parts: list[Part] = []
        rows: list[Row] = []
        room = 1 + self.model.tape.pick(4)
        for _ in range(3):
            for reader in windows.due(s2, self.paused):
                if room <= 0:
                    break
                cap = windows.cap(reader)
                if "fresh_window" in self.model.wrong and reader.cursor.window:
                    reader.cursor = Cursor(s2, reader.cursor.high_water, s2, reader.cursor.position)
                window = reader.cursor.window or s2
                found, full = db.page(self.mine() & reader.lanes, reader, window, cap, room)
                part = windows.read(reader, s2, [row.seq for row in found], full=full, cap=cap, top=top)
                if found:
                    parts.append(part)
                    rows += found
                    room -= len(found)
                yield
            windows.merge()
        if parts:
            self.pages.append((parts, rows))

    def carry(self) -> Iterator[None]:
        """Send the oldest page, row by row, then settle it."""
        parts, rows = self.pages[0]
        back: set[int] = set()
        stopped: set[int] = set()
        for row in rows:
            if row.key in stopped or (self.model.faults and self.model.tape.pick(12) == 11):
                stopped.add(row.key)
                back.add(row.seq)
                continue
            if row.topic in self.paused:
                stopped.add(row.key)
                back.add(row.seq)
                continue
            self.model.sent.append(row)
            yield
        if not self.pages or self.pages[0][1] is not rows:
            return  # what was read was forgotten meanwhile
        self.pages.pop(0)
        if back:
            for later, _ in reversed(self.pages):
                for part in later:
                    self.windows.release(part)
            self.pages.clear()
        ours, kept = self.mine(), {row.seq: row for row in rows}
        for part in parts:
            if any(kept[seq].lane not in ours for seq in part.seqs):
                back |= {seq for seq in part.seqs if kept[seq].lane not in ours}
            count = next((place for place, seq in enumerate(part.seqs) if seq in back), len(part.seqs))
            cursor = self.windows.settle(part, count)
            moved = set(part.seqs[:count]) if cursor is not None else set[int]()
            self.db.marked |= {seq for seq in part.seqs if seq not in moved and seq not in back}
            if cursor is not None:
                touched = {kept[seq].lane for seq in part.seqs} if self.model.tape.pick(3) else part.lanes
                self.db.save(touched & ours, part.group, cursor)
        self.db.commit_alone()
        for lane in set(self.epochs) - ours:
            del self.epochs[lane]


@dataclass
class Model:
    tape: Tape
    wrong: frozenset[str] = frozenset()
    windows_kind: type[Windows] = Windows
    faults: bool = True
    sent: list[Row] = field(default_factory=list)
    committed: list[Row] = field(default_factory=list)
    purged: list[Row] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    locked: set[int] = field(default_factory=set)
    faulted: bool = False

    def __post_init__(self) -> None:
        self.db = Postgres(self.wrong)
        self.relays = [Relay(self), Relay(self)]
        self.relays[0].take_over(range(LANES))

    def play(self) -> None:
        while not self.tape.over:
            self.step()
        self.finish()

    def step(self) -> None:
        pick = self.tape.pick
        match pick(16):
            case 0 | 1:
                self.writers.append(Writer(self.db.begin()))
            case 2 | 3 | 4:
                self.append()
            case 5 | 6:
                if self.writers:
                    self.end(self.writers[pick(len(self.writers))], commit=pick(5) > 0)
            case 7 if self.faults:
                self.take_over(pick(2), [lane for lane in range(LANES) if pick(2)])
            case 8 if self.faults and pick(2):
                self.crash(pick(2))
            case 9:
                relay = self.relays[pick(2)]
                relay.paused = frozenset() if relay.paused else frozenset({TOPICS[pick(2)]})
            case 10 if pick(2):
                self.purge()
            case _:
                next(self.relays[pick(2)].turn)

    def append(self) -> None:
        """A writer locks a key's row, then takes a ``seq``: so a key's rows commit in the order of their numbers."""
        if not self.writers:
            return
        writer = self.writers[self.tape.pick(len(self.writers))]
        key = self.tape.pick(KEYS)
        if key in self.locked and all(row.key != key for row in writer.rows):
            return
        self.locked.add(key)
        self.db.seq += 1
        writer.rows.append(Row(self.db.seq, writer.xid, key))

    def end(self, writer: Writer, *, commit: bool) -> None:
        self.writers.remove(writer)
        self.db.end(writer.xid)
        self.locked -= {row.key for row in writer.rows}
        if commit:
            self.db.rows += writer.rows
            self.committed += writer.rows

    def take_over(self, new: int, lanes: list[int]) -> None:
        if lanes:
            self.faulted = True
            self.relays[new].take_over(lanes)

    def crash(self, which: int) -> None:
        """The process dies and another one starts in its place: memory is gone, lanes are acquired anew."""
        self.faulted = True
        lanes = sorted(self.relays[which].owned())
        self.relays[which] = Relay(self)
        self.take_over(which, lanes)

    def purge(self) -> None:
        cursors = [cursor for lane in self.db.lanes for cursor in lane.cursors.values()]
        for row in list(self.db.rows):
            by_number = all(row.seq <= cursor.high_water for cursor in cursors)
            gone = by_number if "purge_by_number" in self.wrong else settled(row.seq, row.xid, cursors)
            if gone or row.seq in self.db.marked:
                self.db.rows.remove(row)
                self.purged.append(row)

    def finish(self) -> None:
        """Faults stop. All writers commit but one, which stays open for ever; then the relays read to the end."""
        self.faults = False
        for writer in self.writers[1:]:
            self.end(writer, commit=True)
        for relay in self.relays:
            relay.paused = frozenset()
        orphans = [lane for lane in range(LANES) if all(lane not in relay.owned() for relay in self.relays)]
        if orphans:
            self.relays[0].take_over(orphans)
        for _ in range(600 + 60 * len(self.committed)):
            for relay in self.relays:
                next(relay.turn)
            if not self.lost() and not any(relay.pages for relay in self.relays):
                return

    def lost(self) -> set[Row]:
        return set(self.committed) - set(self.sent)

    def repeated(self) -> int:
        return len(self.sent) - len(set(self.sent))

    def inversions(self) -> list[Row]:
        """First sendings of a key that came before a lower number of that key."""
        newest: dict[int, int] = {}
        seen: set[Row] = set()
        wrong: list[Row] = []
        for row in self.sent:
            if row not in seen and row.seq < newest.get(row.key, 0):
                wrong.append(row)
            seen.add(row)
            newest[row.key] = max(newest.get(row.key, 0), row.seq)
        return wrong

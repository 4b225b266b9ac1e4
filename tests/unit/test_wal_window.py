"""The window of the source ``wal`` against a plain model: the position never passes what is open, and what crashes
lose nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from relevo.message import Message
from relevo.ports.source import Disposition
from relevo.sources.wal.grace import Grace
from relevo.sources.wal.source import _plan
from relevo.sources.wal.window import Page, Window
from relevo.storage.waling import Position


def message(number: int, topic: str = "t", key: bytes | None = b"k") -> Message:
    return Message(
        event_id=UUID(int=number), type="T", topic=topic, payload=b"%d" % number, created_at=datetime.now(UTC), key=key
    )


def pages_of(transactions: list[int], sizes: list[int], keys: int = 3) -> list[Page]:
    """Pages over transactions of so many messages, cut at ``sizes``. The transaction ``n`` commits at LSN 100·n and
    ends 10 behind that."""
    marks = [(100 * number, ordinal + 1) for number, count in enumerate(transactions, 1) for ordinal in range(count)]
    ends = {(100 * number, count): 100 * number + 10 for number, count in enumerate(transactions, 1)}
    pages = []
    at = 0
    for size in sizes:
        part = marks[at : at + size]
        if not part:
            break
        last = part[-1]
        end = Position(ends[last]) if last in ends else Position(*last)
        messages = [message(at + place, key=b"k%d" % ((at + place) % keys)) for place in range(len(part))]
        pages.append(Page(list(range(at, at + len(part))), [0] * len(part), messages, part, {}, end, range(len(part))))
        at += len(part)
    return pages


shapes = st.tuples(
    st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.integers(1, 5), min_size=1, max_size=8)
)


@given(shapes, st.data())
def test_the_position_is_the_longest_settled_prefix(shape: tuple[list[int], list[int]], data: st.DataObject) -> None:
    """Messages settled in any order: the position is always that of the prefix, and a restart from it reads exactly
    what is behind it."""
    pages = pages_of(*shape)
    window = Window(Position(50), 50)
    for page in pages:
        window.add(page)
    everything = [(page, index) for page in pages for index in range(len(page.seqs))]
    marks = [page.marks[index] for page, index in everything]
    settled: set[int] = set()
    for number in data.draw(st.permutations(range(len(everything)))):
        page, index = everything[number]
        if index not in page.open:
            continue
        before = window.position()
        foreseen = window.position(page, [index])
        window.settle(page, [index])
        settled.add(number)
        prefix = next((n for n in range(len(everything)) if n not in settled), len(everything))
        position = window.position()
        assert position == foreseen >= before
        read_again = [n for n, mark in enumerate(marks) if mark > position]
        assert read_again == list(range(prefix, len(everything)))
    assert not window.pages


@given(shapes, st.data())
def test_copies_commit_with_the_position_that_passes_them(
    shape: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    """HARD 6: a message is held only where nothing before it stays open, so that no copy is made of what a crash would
    read again."""
    pages = pages_of(*shape)
    window = Window(Position(50), 50)
    for page in pages:
        window.add(page)
    for page in pages:
        fates = {
            index: Disposition(data.draw(st.sampled_from(["hold", "behind", "skip", "back"])))
            for index in data.draw(st.sets(st.sampled_from(range(len(page.seqs)))))
        }
        live = (
            {
                ("t", page.messages[index].key or b"")
                for index in data.draw(st.sets(st.sampled_from(sorted(fates))))
                if fates
            }
            if fates
            else set()
        )
        done, asides = _plan(window, page, list(page.open), fates, live)
        position = window.position(page, done)
        for aside in asides:
            assert aside.index in done
            assert page.marks[aside.index] <= position
            assert aside.disposition.action == "skip" or ("t", aside.message.key) not in live
        for index, fate in fates.items():
            if fate.action in ("hold", "behind") and index in done:
                assert index in {aside.index for aside in asides}
            if fate.action == "back":
                assert index not in done
        window.settle(page, done)


def test_reached_counts_only_when_nothing_is_open() -> None:
    """A keepalive's LSN is the position where everything read is settled, and never before."""
    (page,) = pages_of([2], [2])
    window = Window(Position(50), 50)
    window.add(page)
    window.reached = 5000
    assert window.position() == Position(50)
    window.settle(page, [0])
    assert window.position() == Position(100, 1)
    window.settle(page, [1])
    assert window.position() == Position(5000)


def test_grace() -> None:
    """A topic that is away holds the stream up for a moment only, longer while no other topic was seen, and what came
    before its first message is not held up at all."""
    now = 0.0
    grace = Grace(others_wait_s=2.0, all_wait_s=30.0, seconds=lambda: now)
    page = Page(
        [0, 1, 2], [0] * 3, [message(0, "a"), message(1, "b"), message(2, "a")], [(1, 1)] * 3, {}, Position(9), range(3)
    )
    assert grace.passable(page, ()) == (range(3), None)
    assert grace.passable(page, {"b"}) == (range(1), 2.0)
    now = 1.5
    assert grace.passable(page, {"b"}) == (range(1), 0.5)
    now = 2.5
    assert grace.passable(page, {"b"}) == (range(3), None)
    assert grace.passable(page, {"a", "b"}) == (range(0), 30.0)  # every topic: more patience, b's is counted on
    now = 40.0
    assert grace.passable(page, {"a", "b"}) == (range(3), None)
    assert grace.passable(page, ()) == (range(3), None)
    assert not grace.waiting
    now = 41.0
    assert grace.passable(page, {"b"}) == (range(1), 2.0)  # available in between: counted anew

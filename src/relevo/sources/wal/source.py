"""The source ``wal``: reads the outbox from PostgreSQL's write-ahead log, as its transactions commit.

One process reads, those that stand by take over by lease. The position row says what is settled; it is written a few
times a second, at once together with copies of what is moved past unsent, and at the end. After a crash the last
moments are read, and published, again. The slot is told the row's position, never more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from relevo.bounds import answer_s
from relevo.errors import LostOwnershipError, RelevoError, UnreachableError
from relevo.ports.database import Database
from relevo.ports.source import Disposition, Settled, SourceCapabilities, Taken
from relevo.sources.wal.connecting import Connect, Connected, explained
from relevo.sources.wal.grace import Grace
from relevo.sources.wal.keeping import SILENCE_MAX_S, Keeper
from relevo.sources.wal.lease import ReaderLease
from relevo.sources.wal.stream import Stream
from relevo.sources.wal.window import Page, Window
from relevo.storage.marking import held_key
from relevo.storage.waling import Aside, LiveKeysError

log = logging.getLogger("relevo.relay")

NOTHING = Taken((), (), (), exhausted=True)


class WalSource:
    """The ``Source`` port on a replication slot. ``wake`` is called when something came in while nobody was taking.

    What may not be sent for long is not left behind, since the slot would keep all WAL from there on: after a moment of
    grace it is handed out although its topic is in ``without_topics``, to be held (``capabilities.leaves`` says so).
    """

    # A look takes what has arrived and asks nobody. With 2 ms from one to the next the median at 1,000/s is 2.5 ms for
    # a third of a core; so it is 1.4 ms for half of one (benchmarks/latency.py). An idle loop counts in milliseconds.
    capabilities = SourceCapabilities(lanes=False, history=True, leaves=False, company_s=0.0005)

    def __init__(
        self,
        database: Database,
        lease: ReaderLease,
        lane_count: int,
        connect: Connect,
        wake: Callable[[], None],
        *,
        grace: Grace | None = None,
    ) -> None:
        self._database = database
        self._lease = lease
        self._lane_count = lane_count
        self._connect = connect
        self._wake = wake
        self._grace = grace or Grace()
        self._lanes: Collection[int] = ()
        self._flying: dict[int, tuple[Taken, Page, Sequence[int]]] = {}
        self._connected: Connected | None = None
        self._keeper: Keeper | None = None
        self._listening = False
        self._broken: Exception | None = None
        self._opened_at = 0.0
        self._silences = 0
        """How often one stream after the other ended since the server was silent."""

    async def assign(self, lanes: Mapping[int, int]) -> None:
        """All lanes, or none: then the stream is ended, and whoever is next goes on from the position row."""
        await self._close()
        self._lanes = set(lanes)

    async def take(self, max_messages: int, max_bytes: int, *, without_topics: Collection[str] = ()) -> Taken:
        if not self._lanes:
            return NOTHING
        if self._connected is None:
            await self._open()
        keeper, stream = self._keeper, self._stream
        if keeper is None or stream is None or self._lease.epoch is None:
            return NOTHING  # somebody else reads by now; whoever renews the lease will notice
        self._raise_broken(keeper)
        page = keeper.window.waiting()
        if page is None:
            page = self._read(stream, keeper.window, max_messages, max_bytes)
            if page is None:
                return NOTHING
        return self._offer(page, without_topics)

    async def settle(self, taken: Taken, dispositions: Mapping[int, Disposition]) -> Settled:
        _, page, indexes = self._flying.pop(id(taken))
        page.flying = False
        keeper = self._keeper
        if keeper is None or self._lease.epoch is None:
            return Settled(0, set(taken.lanes), ())
        self._raise_broken(keeper)
        if not dispositions:
            keeper.settle(page, indexes)
            return Settled(len(taken), (), ())
        fates = {indexes[place]: disposition for place, disposition in dispositions.items()}
        live: set[tuple[str, bytes]] = set()
        while True:
            done, asides = _plan(keeper.window, page, indexes, fates, live)
            try:
                if asides:
                    await keeper.save(page, done, asides)
                keeper.settle(page, done)
                return Settled(len(done), (), live)
            except LiveKeysError as error:
                live |= error.names
            except LostOwnershipError:
                self._lease.epoch = None
                return Settled(0, set(taken.lanes), ())

    async def settle_all(self, pages: Sequence[Taken]) -> Settled:
        settled = [await self.settle(page, {}) for page in pages]
        return Settled(sum(each.count for each in settled), {lane for each in settled for lane in each.lost}, ())

    async def release(self, taken: Taken) -> None:
        found = self._flying.pop(id(taken), None)
        if found is not None:
            found[1].flying = False

    async def aclose(self) -> None:
        self._flying.clear()
        await self._close()

    @property
    def _stream(self) -> Stream | None:
        return self._connected.stream if self._connected is not None else None

    async def _open(self) -> None:
        epoch = self._lease.epoch
        if epoch is None:
            return
        try:
            self._connected = connected = await self._connect(epoch)
        except LostOwnershipError:
            self._lease.epoch = None
            return
        now = self._lease.seconds()
        if now - self._opened_at > 2 * SILENCE_MAX_S:
            self._silences = 0
        self._opened_at = now
        silence_s = min(SILENCE_MAX_S, answer_s(self._lease.lease_s) * 2**self._silences)
        window = Window(connected.start, connected.start.lsn)
        self._keeper = Keeper(self._database, self._lease, epoch, connected, window, silence_s)
        self._keeper.begin(self._wake)
        self._listen()

    def _read(self, stream: Stream, window: Window, max_messages: int, max_bytes: int) -> Page | None:
        """The next page of the stream, ``None`` when nothing is there: then the socket says when there is."""
        with explained(self._lease.slot):
            chunk = stream.read(max_messages, max_bytes)
        window.reached = stream.reached
        if not chunk.more:
            self._listen()
        if not chunk.messages:
            if chunk.more:
                self._wake()  # others wrote a lot: look on at once
            return None
        lanes = [bucket % self._lane_count for bucket in chunk.buckets]
        page = Page(
            chunk.seqs,
            lanes,
            chunk.messages,
            chunk.marks,
            chunk.unreadable,
            stream.after(chunk),
            range(len(chunk.seqs)),
            more=chunk.more,
        )
        window.add(page)
        return page

    def _offer(self, page: Page, without: Collection[str]) -> Taken:
        indexes = page.open
        if without or self._grace.waiting:
            indexes, wait_s = self._grace.passable(page, without)
            if wait_s is not None:
                asyncio.get_running_loop().call_later(wait_s, self._wake)
            if not indexes:
                return NOTHING
        page.flying = True
        if len(indexes) == len(page.seqs):
            taken = Taken(page.seqs, page.lanes, page.messages, not page.more, page.unreadable)
        else:
            places = {index: place for place, index in enumerate(indexes)}
            taken = Taken(
                [page.seqs[index] for index in indexes],
                [page.lanes[index] for index in indexes],
                [page.messages[index] for index in indexes],
                False,
                {places[index]: why for index, why in page.unreadable.items() if index in places},
            )
        self._flying[id(taken)] = (taken, page, indexes)
        return taken

    def _listen(self) -> None:
        """Be called when the socket has something, until there is something for the relay."""
        if not self._listening and self._connected is not None:
            self._listening = True
            asyncio.get_running_loop().add_reader(self._connected.fileno, self._on_readable)

    def _deaf(self) -> None:
        if self._listening and self._connected is not None:
            self._listening = False
            asyncio.get_running_loop().remove_reader(self._connected.fileno)

    def _on_readable(self) -> None:
        stream, keeper = self._stream, self._keeper
        if stream is None or keeper is None:
            return
        try:
            with explained(self._lease.slot):
                if stream.pump():
                    self._deaf()
                    self._wake()
                keeper.window.reached = stream.reached
        except RelevoError as error:  # raised where somebody can handle it
            self._broken = error
            self._deaf()
            self._wake()

    def _raise_broken(self, keeper: Keeper) -> None:
        error = self._broken or keeper.failure
        if error is not None:
            raise error

    async def _close(self) -> None:
        """Save what is settled, tell the slot, and end the stream."""
        self._deaf()
        keeper, connected = self._keeper, self._connected
        self._keeper = self._connected = self._broken = None
        self._flying.clear()
        if keeper is not None:
            self._silences += keeper.silent
            try:
                await keeper.end()
            except (UnreachableError, LostOwnershipError) as error:
                log.debug("the last position was not saved, what it covers is read again: %s", error)
        if connected is not None:
            connected.close()


def _plan(
    window: Window,
    page: Page,
    indexes: Sequence[int],
    fates: Mapping[int, Disposition],
    live: Collection[tuple[str, bytes]],
) -> tuple[list[int], list[Aside]]:
    """Which indexes are done, and which of them leave a copy.

    A copy commits with the position that moves past its original (HARD 6), so it is made only where nothing before it
    stays open; else the message is offered again.
    """
    names = {index: (page.messages[index].topic, held_key(page.messages[index])) for index in fates}
    stays = {
        index
        for index, fate in fates.items()
        if fate.action == "back" or (fate.action in ("hold", "behind") and names[index] in live)
    }
    done = [index for index in indexes if index not in stays]
    edge = window.prefix(page, done) if window.first(page) else -1
    left = {
        index
        for index, fate in fates.items()
        if fate.action in ("hold", "behind") and index > edge and index not in stays
    }
    if left:
        done = [index for index in done if index not in left]
    asides = [
        Aside(index, page.seqs[index], page.messages[index], fates[index])
        for index in done
        if index in fates and index <= edge
    ]
    return done, asides

"""What the blocking and the asynchronous unit on psycopg share."""

from __future__ import annotations

from typing import Any

from relevo.errors import ConfigError, MisuseError
from relevo.storage.handles import CallerHandle, handle_for
from relevo.storage.transactions import pipelining
from relevo.storage.transactions.base import MISUSE, OPEN, unread, wrong_kind
from relevo.storage.transactions.lending import Lender
from relevo.storage.transactions.severing import OnConnection
from relevo.storage.transactions.status import half_read, still_open
from relevo.storage.transactions.watching import PsycopgWatch, Watch


class Watched(OnConnection):
    """What the blocking and the asynchronous unit share."""

    def __init__(self, lender: Lender, many: bool = False) -> None:
        self._lender = lender
        self._many = many
        self._watch = Watch(many=many)
        self._on: PsycopgWatch | None = None
        self._connection: Any = None
        self._pipeline: Any = None
        self._handle: CallerHandle | None = None

    bypassed = False

    @property
    def misused(self) -> bool:
        return self._watch.ended

    @property
    def broken(self) -> bool:
        return self._connection is not None and bool(self._connection.closed)

    def _took(self, connection: Any, kind: Any) -> None:
        """Raises ``ConfigError`` for what is no connection of this ``kind``, or in use."""
        if not isinstance(connection, kind):
            raise wrong_kind(connection, f"a psycopg {kind.__name__}")
        self._connection = connection
        self._handle = handle_for(connection)
        if connection.pgconn.transaction_status:  # not idle
            raise ConfigError(OPEN)

    def _enter(self) -> object:
        if self._on is None:
            self._on = PsycopgWatch(self._connection, self._watch)
            self._on.put_on()
            if self._many:
                pipelining.watch(self._connection)
                self._on.note()
        return self._connection

    def _leave(self) -> None:
        if not self._many:
            self._lift()
        elif self._on is not None:
            self._on.take_back()
        self._watch.check()
        if self._connection._num_transactions:  # a conn.transaction() block that was entered and never left
            self._watch.lasts = True
            raise MisuseError(MISUSE)
        pipeline = self._connection._pipeline
        if pipeline is not self._pipeline or (pipeline is not None and pipeline.level != 1):
            raise unread("pipeline()")
        if pipeline is None:
            still_open(self._connection)

    def _lift(self) -> None:
        if self._on is not None:
            self._on.lift()
            self._on = None

    def _refuse_half_read(self) -> None:
        """A ROLLBACK would wait without end."""
        if half_read(self._connection):
            raise unread("half read")

    def _synced(self) -> None:
        pipelining.check(self._connection)
        self._watch.check()
        still_open(self._connection)

    def _took_back(self) -> tuple[Any, bool]:
        """The connection to be given back, and whether it must not be used again: what a handler set for the session
        would hold for other messages."""
        self._lift()
        connection, self._connection, self._handle = self._connection, None, None
        return connection, connection is not None and (self._distrusted or bool(connection.closed) or self._watch.lasts)

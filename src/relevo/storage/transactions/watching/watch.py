"""What a handler did with its transaction, as the watches of the drivers see it."""

from __future__ import annotations

from typing import Any, Final, Protocol

from relevo.errors import MisuseError
from relevo.storage.transactions.base import MISUSE, StateError
from relevo.storage.transactions.statements import Does, what_it_does


class Watch:
    """What was seen since ``put_on``. ``ended``: the transaction was ended, or that was tried. ``rolled_back``: a
    ROLLBACK passed. ``sets``: state was set in a transaction of several handlers. ``lasts``: state was set that
    outlives the transaction."""

    def __init__(self, *, many: bool, may_roll_back: bool = False) -> None:
        """``many``: several handlers share the transaction. ``may_roll_back``: a ROLLBACK passes, and is remembered."""
        self.many = many
        self.may_roll_back = may_roll_back
        self.ended = False
        self.rolled_back = False
        self.sets = False
        self.lasts = False

    def look(self, query: str | bytes) -> None:
        """Raise for what may not be sent: ``MisuseError``, or ``StateError`` for a handler that has to run alone."""
        does = what_it_does(query)
        if does is not NOTHING:
            self.judge(does, query)

    def judge(self, does: Does, query: str | bytes) -> None:
        if does & Does.LASTS:
            self.lasts = True
        if does & Does.ENDS:
            if self.may_roll_back and query in _ROLLBACKS:
                self.rolled_back = True
                return
            self.ended = True
            raise MisuseError(MISUSE)
        if does & Does.SETS and self.many:
            self.sets = True
            raise StateError

    def keep(self) -> None:
        """State that outlives the transaction is set by a method."""
        self.lasts = True
        if self.many:
            self.sets = True
            raise StateError

    def refuse(self, *_: object, **__: object) -> Any:
        self.ended = True
        raise MisuseError(MISUSE)

    async def arefuse(self, *_: object, **__: object) -> Any:
        self.refuse()

    def check(self) -> None:
        """Raise what was raised before, also where the handler caught it."""
        if self.ended or self.rolled_back:
            raise MisuseError(MISUSE)
        if self.sets:
            raise StateError


NOTHING: Final = Does.NOTHING
"""Compared by identity, for every statement: asking a flag whether it is set is a call."""
_ROLLBACKS = ("ROLLBACK", "ROLLBACK;", b"ROLLBACK")  # as the drivers write it


class DriverWatch(Protocol):
    """A ``Watch`` on one connection."""

    @property
    def watch(self) -> Watch: ...

    def put_on(self) -> None: ...

    def holds(self) -> bool: ...  # false: the handler removed it; true where that is not known

    def lift(self) -> None: ...  # the connection is as before; may be called twice

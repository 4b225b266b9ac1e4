"""What all handles share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.errors import NotInTransactionError
from relevo.ports.database import Dialect
from relevo.script import Rows


@dataclass(eq=False, slots=True)
class Site:
    """Where an append on an async handle was asked for, and whether somebody awaited it since."""

    what: str
    file: str
    line: int
    awaited: bool = False

    def __str__(self) -> str:
        return f"{self.what} at {self.file}:{self.line}"


class CallerHandle:
    """Base of the handles: the contract is ``relevo.ports.database.Handle``; beside it, hooks some libraries offer.

    Lives for one call, belongs to one thread or task, never begins, commits or rolls back.
    """

    __slots__ = ()
    is_async = False

    @property
    def dialect(self) -> Dialect:
        raise NotImplementedError

    def commits_by_itself(self) -> bool:
        """Whether the driver would commit a row written now without being told to."""
        raise NotImplementedError

    def refuse_autocommit(self) -> None:
        if self.commits_by_itself():
            raise NotInTransactionError

    async def arefuse_autocommit(self) -> None:
        self.refuse_autocommit()

    def execute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        raise NotImplementedError

    async def aexecute(self, sql: str, params: Mapping[str, Any]) -> Rows:
        raise NotImplementedError

    @property
    def copies(self) -> bool:
        """Whether ``copy`` (``acopy`` on an async handle) works."""
        return False

    def copy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Feed ``rows`` to a ``COPY … FROM STDIN``."""
        raise NotImplementedError

    async def acopy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing is pending on a plain connection."""

    async def aflush(self) -> None:
        """Nothing is pending on a plain connection."""

    def guard(self, site: Site) -> None:
        """Make the commit fail while ``site`` is not awaited, where the library has a hook for it."""

    def after_commit(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` once the caller has committed; false where the library has no hook for it. The hook stays
        on the session or connection, at most once, and dies with it."""
        return False

"""PostgreSQL through psycopg 3: a few asynchronous connections of Relevo's own.

Not ``psycopg_pool``: its ``getconn`` hides why no connection could be had behind a time-out, and the relay must know at
once whether the server is away (wait), refuses us (say so) or is read-only (say so).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from relevo.bounds import OPERATOR_ANSWER_S, connect_s
from relevo.catalog import Catalog, pyformat
from relevo.clients.cancelling import abandon
from relevo.clients.conninfo import connecting, total_s
from relevo.clients.eager import connection_class
from relevo.clients.refusal import answered, sqlstate_of_refusal
from relevo.clients.sqlstate import ENDED, SESSION_REFUSED, explain, note_failure
from relevo.clients.watch import LOOKS, Watch, Watched
from relevo.errors import ConfigError, MissingExtraError, RelevoError, UnreachableError
from relevo.ports.database import Dialect
from relevo.script import Ids, Rows, Script, Statement, arun
from relevo.settings import DatabaseSettings, redact, redact_text

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

_IDLE_TIMEOUT_S = 5
"""After which the server ends a transaction that stands still, unless ``run`` is told another time: a process that is
frozen (or stopped with Ctrl+Z) must not keep its locks, whatever it was doing. Below the default leases."""
_SESSION_OPTIONS = (
    f"-c timezone=UTC -c idle_in_transaction_session_timeout={_IDLE_TIMEOUT_S}s "
    "-c max_parallel_workers_per_gather=0 -c jit=off "
    "-c standard_conforming_strings=on -c array_nulls=on -c transform_null_equals=off "
    "-c bytea_output=hex -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1"
)
"""What a role or a database sets may change what texts and arrays mean, so all of that is set here.

Our statements are small, and many: where the planner takes them for large ones it would start workers for each page
(30 of the 40 ms that one of 2,000 rows took), or compile it."""
_BY_INDEX = "-c enable_seqscan=off -c enable_bitmapscan=off -c plan_cache_mode=force_generic_plan"
_UNBOUNDED_S = 3600.0
"""For a statement that the server is to give any time."""


class PostgresDatabase:
    """The ``Database`` port on PostgreSQL 13+. Up to ``connections_max`` connections, opened when needed.

    A connection without an answer for ``answer_s`` seconds is given up: ``UnreachableError``, as if it were lost.
    """

    dialect: Dialect = "postgresql"

    def __init__(
        self, settings: DatabaseSettings, *, connections_max: int = 4, answer_s: float = OPERATOR_ANSWER_S
    ) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise MissingExtraError("psycopg", "postgres", "PostgreSQL") from None
        self._psycopg = psycopg
        self._conninfo = settings.url.replace("postgresql+psycopg:", "postgresql:").replace(
            "postgresql+asyncpg:", "postgresql:"
        )
        self._prepare = settings.prepared_statements
        self._catalog = Catalog("postgresql", settings.schema, settings.prefix)
        self._texts: dict[str, str] = {}
        self._idle: list[tuple[psycopg.AsyncConnection[Any], bool]] = []
        """Each with whether its plans walk indexes."""
        self._lent = 0
        self._connections_max = connections_max
        self._slots = asyncio.Semaphore(connections_max)
        self._watch = Watch(answer_s)
        self._closed = False
        self.url = redact(settings.url)

    async def run(
        self,
        script: Script[T],
        *,
        read_only: bool = False,
        single: bool = False,
        idle_timeout_s: float | None = None,
        statement_timeout_s: float | None = None,
        lock_timeout_s: float | None = None,
        by_index: bool = False,
    ) -> T:
        bounds = _bounds(idle_timeout_s, statement_timeout_s, lock_timeout_s)
        async with self._connection(by_index, self._answer_s(statement_timeout_s)) as (connection, watched):
            try:
                if (read_only or single) and not bounds:
                    return await arun(script, self._execute(connection, watched))
                async with self._transaction(connection, watched, bounds):
                    return await arun(script, self._execute(connection, watched))
            except self._psycopg.Error as error:
                raise self._explained(error, watched) from error

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop()[0].close()

    def _execute(self, connection: psycopg.AsyncConnection[Any], watched: Watched) -> Any:
        cursor = connection.cursor(binary=True)

        async def execute(statement: Statement) -> Rows:
            text = self._texts.get(statement.name)
            if text is None:
                text = self._texts[statement.name] = pyformat(self._catalog.text(statement.name))
            watched.looks = 0
            try:
                await cursor.execute(text, _adapted(statement.params))
                return await cursor.fetchall() if cursor.description is not None else ()
            except Exception as error:
                note_failure(error, statement.name)
                raise

        return execute

    @contextlib.asynccontextmanager
    async def _transaction(
        self, connection: psycopg.AsyncConnection[Any], watched: Watched, bounds: str
    ) -> AsyncIterator[None]:
        """As psycopg's own, which would take a round trip for the bounds alone."""
        await connection.execute(f"begin{bounds}".encode(), prepare=False)
        try:
            yield
        except BaseException:
            with contextlib.suppress(self._psycopg.Error):  # who cannot roll back is closed
                watched.looks = 0
                await connection.rollback()
            raise
        watched.looks = 0
        await connection.commit()

    @contextlib.asynccontextmanager
    async def _connection(
        self, by_index: bool, answer_s: float | None
    ) -> AsyncIterator[tuple[psycopg.AsyncConnection[Any], Watched]]:
        if self._slots.locked():
            await self._wait_for_room()
        else:
            await self._slots.acquire()
        try:
            connection = await self._take(by_index)
            self._lent += 1
            watched = self._watch.lend(partial(abandon, connection.pgconn), answer_s)
            try:
                yield connection, watched
            finally:
                self._lent -= 1
                self._watch.back(watched)
                await self._put_back(connection, by_index, watched)
        finally:
            self._slots.release()

    async def _put_back(self, connection: psycopg.AsyncConnection[Any], by_index: bool, watched: Watched) -> None:
        usable = (
            not self._closed
            and not connection.closed
            and not watched.overdue
            and connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE
        )
        if usable:
            self._idle.append((connection, by_index))
        else:
            await connection.close()

    async def _wait_for_room(self) -> None:
        """Those in use come free within their bounds, unless all of them are used for long."""
        bound_s = 2 * self._watch.answer_s
        try:
            async with asyncio.timeout(bound_s):
                await self._slots.acquire()
        except TimeoutError:
            raise UnreachableError(
                f"{self.url}: none of this process's {self._connections_max} connections came free within {bound_s:g} s"
            ) from None

    def _answer_s(self, statement_timeout_s: float | None) -> float | None:
        """The bound of a round trip where the server has been given a time of its own: it is to end it first."""
        if statement_timeout_s is None:
            return None
        if not statement_timeout_s:
            return _UNBOUNDED_S
        return max(self._watch.answer_s, 1.25 * statement_timeout_s + 0.5)

    async def _take(self, by_index: bool) -> psycopg.AsyncConnection[Any]:
        for place in reversed(range(len(self._idle))):
            if self._idle[place][1] == by_index:
                connection, _ = self._idle.pop(place)
                if not connection.closed:
                    return connection
        while self._idle and self._lent + len(self._idle) >= self._connections_max:
            await self._idle.pop(0)[0].close()
        bound_s = connect_s(self._watch.answer_s)
        params = connecting(self._conninfo, self._watch.answer_s, bound_s) | {
            "application_name": "relevo",
            "options": self._options(by_index),
        }
        try:
            async with asyncio.timeout(total_s(params)):
                connection = await connection_class().connect(**params, autocommit=True)
        except TimeoutError:
            raise UnreachableError(f"{self.url} does not answer: no connection within {total_s(params):g} s") from None
        except self._psycopg.Error as error:
            raise await self._refused(error) from error
        if not self._prepare:
            connection.prepare_threshold = None
        return connection

    def _options(self, by_index: bool) -> str:
        """The URL's own server options (a keyword would replace them), then ours."""
        given = self._psycopg.conninfo.conninfo_to_dict(self._conninfo).get("options")
        return " ".join(str(part) for part in (given, _SESSION_OPTIONS, by_index and _BY_INDEX) if part)

    async def _refused(self, error: psycopg.Error) -> RelevoError:
        """Why there is no connection: the server's own code where one answered."""
        sqlstate = error.sqlstate
        if sqlstate is None and answered(str(error)):
            sqlstate = await sqlstate_of_refusal(self._conninfo)
        explained = self._explained(error, sqlstate=sqlstate or "08006")
        if (sqlstate or "").startswith(SESSION_REFUSED):
            first = redact_text(str(error)).partition("\n")[0]
            explained = ConfigError(f"{self.url} refuses the connection: {first} ({sqlstate})")
        elif not isinstance(explained, RelevoError):
            explained = UnreachableError(f"{self.url} accepts no connection now: {explained} ({sqlstate})")
        explained.sqlstate = sqlstate
        return explained

    def _explained(
        self, error: psycopg.Error, watched: Watched | None = None, *, sqlstate: str | None = None
    ) -> Exception:
        sqlstate = sqlstate or error.sqlstate
        lost = isinstance(error, (self._psycopg.OperationalError, self._psycopg.InterfaceError)) and sqlstate is None
        if lost or sqlstate in ENDED:
            sqlstate = sqlstate or "08006"
            # Whatever broke this connection broke its siblings too, more likely than not: start afresh.
            idle, self._idle = self._idle, []
            for connection, _ in idle:
                with contextlib.suppress(Exception):
                    connection.pgconn.finish()
        if lost and watched is not None and watched.overdue:
            bound_s = self._watch.answer_s * watched.looks_max / LOOKS
            return UnreachableError(
                f"{self.url} does not answer: no reply within {bound_s:g} s, the bound of a round trip"
            )
        primary = error.diag.message_primary or str(error).splitlines()[0] if str(error) else type(error).__name__
        return explain(sqlstate, redact_text(primary), self.url) or error


def _bounds(idle_timeout_s: float | None, statement_timeout_s: float | None, lock_timeout_s: float | None) -> str:
    """Server settings for one transaction, in milliseconds: what follows its ``begin``."""
    bounds = ""
    if idle_timeout_s is not None:
        bounds += f"; set local idle_in_transaction_session_timeout = {max(1, int(idle_timeout_s * 1000))}"
    if statement_timeout_s is not None:
        bounds += f"; set local statement_timeout = {int(statement_timeout_s * 1000)}"
    if lock_timeout_s is not None:
        bounds += f"; set local lock_timeout = {max(1, int(lock_timeout_s * 1000))}"
    return bounds


def _adapted(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lists of integers and ids as array literals: psycopg's list dumper costs a Python call per element."""
    return {
        name: value.literal
        if type(value) is Ids
        else "{" + ",".join(map(str, value)) + "}"
        if type(value) is list and _integers(value)
        else value
        for name, value in params.items()
    }


def _integers(values: list[Any]) -> bool:
    return not values or type(values[0]) is int


__all__ = ["PostgresDatabase", "RelevoError", "UnreachableError"]

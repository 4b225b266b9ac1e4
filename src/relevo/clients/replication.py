"""A replication connection to PostgreSQL, through psycopg's low-level ``pq``: simple queries, then one stream.

psycopg itself does not speak the streaming side. Reading never blocks the loop: ``fill`` takes what the socket has,
``receive`` hands out whole messages; libpq's buffer does not grow beyond a message while nobody calls ``fill``, so the
server is slowed down by TCP and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from relevo.bounds import connect_s
from relevo.clients.conninfo import connecting, total_s
from relevo.clients.refusal import answered, sqlstate_of_refusal
from relevo.clients.sqlstate import explain
from relevo.errors import MissingExtraError, RelevoError, UnreachableError
from relevo.settings import DatabaseSettings, redact, redact_text

if TYPE_CHECKING:
    import psycopg

ANSWER_MAX_S = 30.0
"""For the commands of a replication connection, though others may take longer."""
_OPTIONS = "-c timezone=UTC -c client_encoding=UTF8 -c datestyle=ISO"


class ReplicationError(RelevoError):
    """The server refused a replication command or ended the stream. ``sqlstate``: why, by code."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class ReplicationConnection:
    """One connection; for one task and callbacks of its loop. Make it with ``connect``."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], url: str, answer_s: float) -> None:
        import psycopg

        self._psycopg = psycopg
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self.url = url
        self._answer_s = min(answer_s, ANSWER_MAX_S)

    @classmethod
    async def connect(cls, settings: DatabaseSettings, *, answer_s: float = ANSWER_MAX_S) -> ReplicationConnection:
        """``answer_s``: the bound of a round trip.

        Raises ``UnreachableError``, or ``SchemaError`` where the role lacks the REPLICATION right."""
        try:
            import psycopg
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise MissingExtraError("psycopg", "postgres", "PostgreSQL") from None
        scheme, separator, rest = settings.url.partition("://")
        conninfo = f"{scheme.partition('+')[0]}{separator}{rest}"
        params = connecting(conninfo, answer_s, connect_s(answer_s))
        given = params.pop("options", None)
        params |= {"replication": "database", "application_name": "relevo wal"}
        params["options"] = f"{given} {_OPTIONS}" if given else _OPTIONS
        try:
            async with asyncio.timeout(total_s(params)):
                connection = await psycopg.AsyncConnection.connect(**params, autocommit=True)
        except TimeoutError:
            raise UnreachableError(
                f"{redact(settings.url)} does not answer: no replication connection within {total_s(params):g} s"
            ) from None
        except psycopg.Error as error:
            text = redact_text(str(error).strip().splitlines()[-1]) if str(error).strip() else type(error).__name__
            sqlstate = error.sqlstate or "08006"
            if error.sqlstate is None and answered(str(error)):
                sqlstate = await sqlstate_of_refusal(conninfo) or sqlstate
            if sqlstate == "42501":
                raise ReplicationError(text, sqlstate) from error
            raise explain(sqlstate, text, redact(settings.url)) or ReplicationError(text, sqlstate) from error
        return cls(connection, redact(settings.url), answer_s)

    @property
    def fileno(self) -> int:
        return int(self._pgconn.socket)

    async def identify(self) -> tuple[str, int]:
        """(system identifier, timeline) of the server at the other end."""
        result = await self._command("IDENTIFY_SYSTEM")
        system, timeline = result.get_value(0, 0), result.get_value(0, 1)
        return (system or b"").decode(), int(timeline or b"0")

    async def start(self, slot: str, lsn: str, publication: str) -> None:
        """Begin to stream ``slot`` at ``lsn``. Raises ``ReplicationError`` with the server's SQLSTATE."""
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn} '
            f"(proto_version '1', publication_names '\"{publication}\"', binary 'true', messages 'true')"
        )
        await self._command(command, self._psycopg.pq.ExecStatus.COPY_BOTH)

    def fill(self) -> None:
        """Take in what the socket has. Raises ``UnreachableError`` when the connection is gone."""
        try:
            self._pgconn.consume_input()
        except self._psycopg.Error as error:
            raise self._gone(error) from error

    def receive(self) -> bytes | None:
        """The next whole message that was taken in, ``None`` without one.

        Raises ``ReplicationError`` when the server ended the stream, ``UnreachableError`` when it is gone.
        """
        try:
            size, data = self._pgconn.get_copy_data(1)
        except self._psycopg.Error as error:
            raise self._gone(error) from error
        if size > 0:
            return bytes(data)
        if size == 0:
            return None
        raise self._ended()

    def send(self, data: bytes) -> None:
        """Queue ``data`` and send what the socket takes; the rest goes with the next call."""
        try:
            self._pgconn.put_copy_data(data)
            self._pgconn.flush()
        except self._psycopg.Error as error:
            raise self._gone(error) from error

    def finish(self) -> None:
        """End a connection on which no stream runs."""
        self._pgconn.finish()

    def close(self) -> None:
        """End stream and connection. The end of the stream goes first, so that the server reads what was sent."""
        with contextlib.suppress(self._psycopg.Error):
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        self._pgconn.finish()

    async def _command(self, text: str, wanted: int | None = None) -> Any:
        pq = self._psycopg.pq
        try:
            self._pgconn.send_query(text.encode())
            async with asyncio.timeout(self._answer_s):
                self._pgconn.flush()
                result = await self._result()
                if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                    with contextlib.suppress(self._psycopg.Error):  # it may be the server's last word
                        await self._result()  # none: the next command may be sent
        except TimeoutError:
            raise UnreachableError(f"{self.url} did not answer {text.split()[0]} within {self._answer_s:g} s") from None
        except self._psycopg.Error as error:
            raise self._gone(error) from error
        if result is None:
            raise UnreachableError(f"{self.url} closed the replication connection")
        if result.status != (pq.ExecStatus.TUPLES_OK if wanted is None else wanted):
            raise self._refused(result)
        while wanted is None and self._pgconn.get_result() is not None:
            pass
        return result

    async def _result(self) -> Any:
        while self._pgconn.is_busy():
            await readable(self.fileno)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _ended(self) -> Exception:
        result = self._pgconn.get_result()
        if result is not None and result.status == self._psycopg.pq.ExecStatus.FATAL_ERROR:
            return self._refused(result)
        return UnreachableError(f"{self.url} ended the replication stream")

    def _refused(self, result: Any) -> Exception:
        field = self._psycopg.pq.DiagnosticField
        sqlstate = (result.error_field(field.SQLSTATE) or b"08006").decode()
        text = redact_text((result.error_field(field.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace"))
        if sqlstate in ("42501", "42883", "42P01", "42704"):  # about slot or publication here, not about tables
            return ReplicationError(text, sqlstate)
        return explain(sqlstate, text, self.url) or ReplicationError(text, sqlstate)

    def _gone(self, error: Exception) -> UnreachableError:
        text = str(error).strip().splitlines()
        return UnreachableError(f"{self.url} does not answer: {redact_text(text[0]) if text else type(error).__name__}")


async def readable(fileno: int) -> None:
    """Wait until the socket has something to read, or is closed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fileno, done)
    try:
        await ready
    finally:
        loop.remove_reader(fileno)

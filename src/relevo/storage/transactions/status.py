"""The state of a driver's connection, read without asking the server where the driver knows it."""

from __future__ import annotations

from typing import Any

from relevo.errors import MisuseError
from relevo.storage.transactions.base import MISUSE, AbortedTransactionError, unread

_IDLE, _ACTIVE, _IN_TRANSACTION, _IN_ERROR = 0, 1, 2, 3  # libpq's PGTransactionStatusType


def still_open(driver_connection: Any) -> bool | None:
    """True: in a transaction that can commit. ``None``: the driver cannot tell whether it was aborted.

    Raises ``MisuseError`` when the transaction was ended, or a statement is under way in it;
    ``AbortedTransactionError`` when the database aborted it (a COMMIT would be answered with ROLLBACK, and no error).
    """
    info = getattr(driver_connection, "pgconn", None) or getattr(driver_connection, "info", None)
    status = getattr(info, "transaction_status", None)
    if status is not None:  # psycopg, without the objects its ``info`` makes of it; psycopg2
        if status == _IN_ERROR:
            raise AbortedTransactionError
        if status == _IDLE:
            raise MisuseError(MISUSE)
        if getattr(driver_connection, "_pipeline", None) is not None:
            raise unread("pipeline()")
        if status == _ACTIVE:
            raise unread("its result, or its COPY, is not read to the end")
        return bool(status == _IN_TRANSACTION)
    in_transaction = getattr(driver_connection, "in_transaction", None)
    if isinstance(in_transaction, bool):  # sqlite3, aiosqlite
        if not in_transaction:
            raise MisuseError(MISUSE)
        return True
    asks = getattr(driver_connection, "is_in_transaction", None)
    if callable(asks) and not asks():  # asyncpg
        raise MisuseError(MISUSE)
    return None


def half_read(driver_connection: Any) -> bool:
    """Whether a COPY, a result or a pipeline of psycopg's is open: whoever sends a statement waits for its end first.
    False for other drivers."""
    pgconn = getattr(driver_connection, "pgconn", None)
    if pgconn is None:
        return False
    return pgconn.transaction_status == _ACTIVE or driver_connection._pipeline is not None

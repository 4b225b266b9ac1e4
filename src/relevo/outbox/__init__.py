"""The write side: ``Outbox`` puts messages into the caller's own transaction."""

from relevo.loggers import guard
from relevo.outbox.pending import PendingAdd
from relevo.outbox.writer import AsyncHandle, Outbox, SyncHandle

guard()

__all__ = ["AsyncHandle", "Outbox", "PendingAdd", "SyncHandle"]

"""The right half: take, begin, inbox, handler, commit, settle."""

from __future__ import annotations

from relevo.consumer.consumer import Consumer
from relevo.consumer.event import Event
from relevo.consumer.health import ConsumerHealth
from relevo.consumer.runner import ConsumerRunner
from relevo.consumer.verdicts import Reject, Retry
from relevo.loggers import guard

guard()

__all__ = ["Consumer", "ConsumerHealth", "ConsumerRunner", "Event", "Reject", "Retry"]

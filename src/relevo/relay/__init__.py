"""The left half: from the outbox to the broker."""

from relevo.loggers import guard
from relevo.relay.service import Relay, run_relay

guard()

__all__ = ["Relay", "run_relay"]

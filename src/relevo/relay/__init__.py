"""The left half: from the outbox to the broker."""

from relevo.relay.service import Relay, run_relay

__all__ = ["Relay", "run_relay"]

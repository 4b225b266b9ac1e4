"""Nobody listens at the address: everything ends in time and says so."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from relevo.brokers import broker_for
from relevo.errors import UnreachableError
from relevo.outcome import Unavailable
from relevo.ports.broker import Broker
from relevo.testing.broker_processes import make_message


@pytest.fixture
def nowhere() -> Iterator[Broker]:
    """A port that is taken and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield broker_for(f"kafka://127.0.0.1:{taken.getsockname()[1]}")


async def test_publish_and_probe(nowhere: Broker) -> None:
    """Nothing was sent, so it is unavailable, within a few seconds and every time."""
    publisher = await nowhere.publisher(source="urn:relevo:test", send_timeout_s=1.0)
    try:
        for _ in range(2):
            began = time.monotonic()
            outcomes = await publisher.publish([make_message("a.b", key=b"k"), make_message("a.b", key=b"k")])
            assert time.monotonic() - began < 40  # an end, not a speed
            assert isinstance(outcomes[0], Unavailable)
            assert set(outcomes) == {0, 1}
        assert isinstance(await publisher.probe("a.b"), Unavailable)
    finally:
        await publisher.aclose()


async def test_check_and_ensure_topics(nowhere: Broker) -> None:
    with pytest.raises(UnreachableError):
        await nowhere.check()
    with pytest.raises(UnreachableError):
        await nowhere.ensure_topics(["a.b"])


async def test_take(nowhere: Broker) -> None:
    """A consumer is told, may ask again, and can be closed in time."""
    member = await nowhere.subscribe("g", ["a.b"])
    try:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(UnreachableError):
                while time.monotonic() - began < 45:
                    assert await member.take(1, 1.0) == []
    finally:
        began = time.monotonic()
        await member.aclose()
        assert time.monotonic() - began < 60

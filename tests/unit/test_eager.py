"""What has arrived is taken in at one turn, and other tasks get theirs."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator

import pytest

from relevo.clients import eager
from relevo.clients.eager import eagerly

READ, WRITE, READY = 1, 2, 1


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def reading(ours: socket.socket, until: bytes = b".") -> Generator[int, int, bytes]:
    """A byte each time, as a client library with a small buffer."""
    found = b""
    while not found.endswith(until):
        assert (yield READ) == READY
        found += ours.recv(1)
    return found


def turns(steps: Generator[int, int, bytes], at_most: int) -> tuple[int, bytes]:
    """How often the caller is asked to wait, and the result."""
    next(steps)
    for turn in range(1, at_most + 1):
        try:
            steps.send(READY)
        except StopIteration as end:
            return turn, end.value
    raise AssertionError(f"not done after {at_most} turns")


def test_what_has_arrived_is_taken_in_at_one_turn(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    monkeypatch.setattr(eager.time, "monotonic", lambda: 0.0)  # a stretch is over after TURN_S, and machines are busy
    theirs.sendall(b"x" * 999 + b".")
    assert turns(eagerly(reading(ours), ours.fileno(), READ, READY), 1) == (1, b"x" * 999 + b".")


def test_without_it_each_piece_takes_a_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"x" * 999 + b".")
    assert turns(reading(ours), 1000)[0] == 1000


def test_what_has_not_arrived_is_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    steps = eagerly(reading(ours), ours.fileno(), READ, READY)
    assert next(steps) == READ
    theirs.sendall(b"ab")
    assert steps.send(READY) == READ
    theirs.sendall(b".")
    with pytest.raises(StopIteration) as end:
        steps.send(READY)
    assert end.value.value == b"ab."


def test_others_get_their_turn(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """However much arrives: a stretch is over after ``TURN_S``."""
    ours, theirs = pair
    theirs.sendall(b"x" * 999 + b".")
    now = iter(step * eager.TURN_S / 100 for step in range(10_000))
    monkeypatch.setattr(eager.time, "monotonic", lambda: next(now))
    count, found = turns(eagerly(reading(ours), ours.fileno(), READ, READY), 20)
    assert 10 <= count <= 11 and len(found) == 1000


def test_an_operation_that_wants_to_write_is_not_told_to_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"x")

    def writing() -> Generator[int, int, int]:
        assert (yield READ) == READY
        return (yield WRITE)

    steps = eagerly(writing(), ours.fileno(), READ, READY)
    assert next(steps) == READ
    assert steps.send(READY) == WRITE
    with pytest.raises(StopIteration) as end:
        steps.send(WRITE)
    assert end.value.value == WRITE


def test_an_error_comes_through(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"x")

    def failing() -> Generator[int, int, bytes]:
        yield READ
        yield READ
        raise ConnectionError("gone")

    steps = eagerly(failing(), ours.fileno(), READ, READY)
    next(steps)
    with pytest.raises(ConnectionError, match="gone"):
        steps.send(READY)

"""The decoder of replication messages: what a server writes comes back; anything else is a clear error.

The encoder of the tests closes the circle: whatever decodes must encode to the very bytes that came, so nothing was
read beyond its place, left over or made up.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo.sources.wal.pgoutput import NOT_ASKED_FOR, decode
from relevo.sources.wal.protocol import UNCHANGED, Decoded, DecodeError, Insert, Text, Truncate
from tests.support.pgoutput import encode, messages

KINDS = b"BCORYIUDTM"


def decodes_to_itself(data: bytes) -> bool:
    """Whether ``data`` is a message; false for a clear refusal. Anything else fails."""
    try:
        message = decode(data)
    except DecodeError:
        return False
    assert encode(message) == data
    return True


@given(messages)
def test_what_was_written_comes_back(message: Decoded) -> None:
    """Every message of protocol version 1, with every kind of value, text and binary kept apart."""
    found = decode(encode(message))
    assert found == message
    if isinstance(message, Insert) and isinstance(found, Insert):
        assert [type(value) for value in found.new] == [type(value) for value in message.new]


@given(messages)
def test_cut_off_at_every_byte(message: Decoded) -> None:
    """A truncated message is an error at each of its bytes, never a shorter message."""
    data = encode(message)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:end])


@given(messages, st.binary(min_size=1, max_size=9))
def test_more_than_one_message(message: Decoded, more: bytes) -> None:
    """Bytes behind the end are an error: they would belong to something that was misread."""
    with pytest.raises(DecodeError):
        decode(encode(message) + more)


@given(messages, st.data())
def test_flipped_bits(message: Decoded, data: st.DataObject) -> None:
    """A flipped bit gives an error or a message that is exactly those bytes."""
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    decodes_to_itself(bytes(raw))


@given(st.sampled_from(KINDS), st.binary(max_size=300))
@example(ord("I"), b"\0\0\0\1N\xff\xff" + b"n" * 9)
@example(ord("I"), b"\0\0\0\1N\0\1b\xff\xff\xff\xffx")
@example(ord("T"), b"\xff\xff\xff\xff\0")
@example(ord("M"), b"\1" + b"\0" * 8 + b"p\0\xff\xff\xff\xff")
def test_random_bytes(kind: int, body: bytes) -> None:
    """Random bytes behind every known first byte, and lengths of four billion."""
    decodes_to_itself(bytes([kind]) + body)


@given(st.binary(max_size=60))
def test_noise(data: bytes) -> None:
    decodes_to_itself(data)


def test_unknown_messages_are_named() -> None:
    """FAILURES row 28: an unknown message is an error that says which byte, and what it would be."""
    with pytest.raises(DecodeError, match="0x7a 'z' is not known"):
        decode(b"z123")
    with pytest.raises(DecodeError, match="0x00 is not known"):
        decode(b"\0")
    for byte, name in NOT_ASKED_FOR.items():
        with pytest.raises(DecodeError, match=name):
            decode(bytes([byte]) + b"\0" * 20)
    with pytest.raises(DecodeError, match="empty"):
        decode(b"")


def test_every_first_byte_is_known_or_refused() -> None:
    for byte in range(256):
        if byte not in KINDS:
            with pytest.raises(DecodeError):
                decode(bytes([byte]) + b"\0" * 40)


def test_kinds_of_values() -> None:
    """Null, unchanged, text and binary are told apart; a broken kind is named."""
    message = Insert(7, [None, UNCHANGED, Text(b"1"), b"\0\1", b"", Text(b"")])
    assert decode(encode(message)) == message
    with pytest.raises(DecodeError, match="unknown kind 0x78"):
        decode(b"I\0\0\0\1N\0\1x\0\0\0\0")


def test_bytes_of_the_documentation() -> None:
    """A message written by hand after the protocol's documentation, so that encoder and decoder cannot agree on a
    mistake."""
    insert = b"I" + b"\0\0\x40\x02" + b"N" + b"\0\3" + b"t\0\0\0\2ab" + b"n" + b"b\0\0\0\4\0\0\0\x2a"
    assert decode(insert) == Insert(0x4002, [Text(b"ab"), None, b"\0\0\0\x2a"])
    assert decode(b"T\0\0\0\1\3\0\0\0\x09") == Truncate((9,), 3)

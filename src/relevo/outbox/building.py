"""From an event to a ``Message``: encoded once, checked against everything later stages could not carry."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from relevo import codec, correlation
from relevo.errors import RefusedError, TooLargeError
from relevo.event import Declaration, declaration_of, encode_key
from relevo.ids import uuid7
from relevo.message import Message, check_headers, check_name, check_text
from relevo.naming import check_dotted
from relevo.outbox.options import DEFAULT, AddOptions

_BIGINT_MAX = 2**63 - 1


def build(event: object, bytes_max: int, options: AddOptions = DEFAULT, *, validate: bool = True) -> Message:
    """The message of a declared ``event``. Raises ``RefusedError`` with the path into the data, ``TooLargeError``.

    Headers: what the context carries, then ``headers``, then ``correlation_id`` and ``causation_id`` if given.
    ``at`` and ``after`` are not looked at. ``validate``: whether the payload is read back and compared.
    """
    declaration = declaration_of(event)
    if options.topic is not None:
        check_dotted("topic", options.topic)
    if isinstance(event, type):
        raise RefusedError(f"{event.__qualname__} is a class: give an instance of it")
    all_headers = {**correlation.headers(), **(options.headers or {})}
    if options.correlation_id is not None:
        all_headers[correlation.CORRELATION] = options.correlation_id
    if options.causation_id is not None:
        all_headers[correlation.CAUSATION] = options.causation_id
    return check(
        Message(
            event_id=uuid7() if options.event_id is None else options.event_id,
            type=declaration.type,
            topic=declaration.topic if options.topic is None else options.topic,
            payload=_payload(event, declaration, validate),
            created_at=datetime.now(UTC),
            kind=declaration.kind,
            schema_version=declaration.schema_version,
            key=declaration.key_of(event) if options.key is ... else encode_key(options.key),
            headers=all_headers,
            aggregate_type=options.aggregate_type,
            aggregate_id=None if options.aggregate_id is None else str(options.aggregate_id),
            aggregate_version=options.aggregate_version,
        ),
        bytes_max,
    )


def _payload(event: object, declaration: Declaration, validate: bool) -> bytes:
    try:
        return codec.encode(event, validate=validate)
    except RefusedError as error:
        if isinstance(declaration.key, str) and getattr(event, declaration.key, ...) is None:
            raise RefusedError(
                f"{error}. Its key {declaration.key!r} is None: if the database makes it, flush the session before the "
                "event is made"
            ) from None
        raise


def check(message: Message, bytes_max: int) -> Message:
    """Return ``message`` if every store and broker can carry it; raise ``RefusedError`` or ``TooLargeError`` if not."""
    check_name("type", message.type)
    check_name("topic", message.topic)
    check_headers(message.headers)
    if not isinstance(message.event_id, UUID):
        raise RefusedError(f"event_id must be a UUID, not {type(message.event_id).__name__}", path="event_id")
    if message.kind not in ("event", "command"):
        raise RefusedError("kind is 'event' or 'command'", path="kind")
    if not 1 <= message.schema_version < 2**31:
        raise RefusedError("schema_version must be from 1 to 2147483647", path="schema_version")
    for name in ("content_type", "aggregate_type", "aggregate_id"):
        value = getattr(message, name)
        if value is not None:
            if not isinstance(value, str):
                raise RefusedError(f"{name} must be a string, not {type(value).__name__}", path=name)
            check_text(value, name)
    version = message.aggregate_version
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise RefusedError(
            f"aggregate_version must be an integer, not {type(version).__name__}", path="aggregate_version"
        )
    if version is not None and not 0 <= version <= _BIGINT_MAX:
        raise RefusedError("aggregate_version must be from 0 to 9223372036854775807", path="aggregate_version")
    size = message.size_bytes()
    if size > bytes_max:
        raise TooLargeError(
            f"the {message.type} message is {size:,} bytes (payload {len(message.payload or b''):,}), and the limit is "
            f"{bytes_max:,}. Carry less (a reference instead of the content), or raise message_bytes_max where the "
            "broker's own limit allows it"
        )
    return message

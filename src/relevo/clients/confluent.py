"""The one place that imports confluent-kafka."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from typing import Any

from relevo.errors import ConfigError, MissingExtraError

log = logging.getLogger("relevo.kafka.client")
"""What librdkafka itself has to say."""


SAID_AGAIN_AFTER_S = 30.0
_said: dict[str, float] = {}


def _worth_saying(record: logging.LogRecord) -> bool:
    """Remarks on the configuration repeat, for every client, that what we chose on purpose is unusual. A producer that
    cannot go on (also: whose messages Relevo took back) is fatal to librdkafka; Relevo replaces it, and says so itself.
    In an outage every client says several times a second that it cannot connect: once in half a minute is enough."""
    if log.isEnabledFor(logging.DEBUG):
        return True
    kind = record.getMessage().partition(" ")[0]
    if kind in ("CONFWARN", "FATAL"):
        return False
    now = time.monotonic()
    if now - _said.get(kind, -SAID_AGAIN_AFTER_S) < SAID_AGAIN_AFTER_S:
        return False
    _said[kind] = now
    if record.levelno > logging.WARNING:  # what follows from it, and how bad that is, Relevo says in its own words
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    record.msg, record.args = "the Kafka client says: %s", (record.getMessage(),)
    return log.isEnabledFor(logging.WARNING)


log.addFilter(_worth_saying)


def confluent() -> Any:
    """The module ``confluent_kafka`` with its ``admin``; raises ``MissingExtraError`` if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "confluent_kafka":
            raise
        raise MissingExtraError("confluent-kafka", "kafka", "a kafka:// broker") from error
    return confluent_kafka


def make(kind: str, config: dict[str, Any]) -> Any:
    """A ``Producer``, ``Consumer`` or ``AdminClient``; raises ``ConfigError`` for a setting librdkafka refuses."""
    module = confluent()
    factory = module.admin.AdminClient if kind == "AdminClient" else getattr(module, kind)
    try:
        return factory({**config, "logger": log})
    except (module.KafkaException, TypeError, ValueError) as error:
        # librdkafka names the setting and never its value where that is a secret; ours does not repeat values at all.
        reason = error.args[0].str() if error.args and hasattr(error.args[0], "str") else type(error).__name__
        raise ConfigError(f"broker.options: the Kafka client refused its settings: {reason}") from None


def answer_of(client: Any, asked: Future[Any]) -> asyncio.Future[Any]:
    """To be awaited: what ``client`` will answer. It answers on a thread of its own and must not be freed there, which
    would wait for that very thread: until then it is kept here."""
    for done in [each for each in list(_asked) if each.done()]:
        _asked.pop(done, None)
    _asked[asked] = client
    return asyncio.wrap_future(asked)


_asked: dict[Future[Any], Any] = {}

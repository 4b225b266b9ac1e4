"""What may be set on the Kafka client, and what would break a promise."""

from __future__ import annotations

import logging

import pytest

from relevo.brokers import broker_for
from relevo.brokers.kafka.options import parse
from relevo.errors import ConfigError

URL = "kafka://127.0.0.1:9092"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", False),
        ("enable.idempotence", "false"),
        ("acks", 1),
        ("acks", "0"),
        ("request.required.acks", 1),
        ("message.timeout.ms", 30_000),
        ("delivery.timeout.ms", 30_000),
        ("enable.auto.commit", True),
        ("enable.auto.offset.store", "true"),
        ("partitioner", "random"),
        ("max.in.flight", 6),
        ("max.in.flight.requests.per.connection", 0),
        ("max.in.flight.requests.per.connection", "many"),
        ("retries", 3),
        ("auto.offset.reset", "latest"),
        ("transactional.id", "x"),
        ("group.id", "x"),
        ("bootstrap.servers", "x:1"),
    ],
)
def test_options_that_break_a_promise_are_refused(name: str, value: str | int | bool) -> None:
    """Refused when the broker is described, with the setting and the reason."""
    with pytest.raises(ConfigError, match=f"'{name}'"):
        broker_for(URL, {name: value})


def test_harmless_values_of_the_same_options_pass() -> None:
    options = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0, "enable.auto.commit": False}
    config = parse(URL, options).producer(500_000)
    assert (config["enable.idempotence"], config["acks"], config["message.timeout.ms"]) == (True, "all", 0)


def test_fewer_requests_in_flight_are_anybodys_choice() -> None:
    name = "max.in.flight.requests.per.connection"
    assert parse(URL, {}).producer(500_000)[name] == 5
    assert parse(URL, {name: 2}).producer(500_000)[name] == 2


def test_options_reach_the_client_they_are_for() -> None:
    """librdkafka warns about a consumer's setting on a producer, so each gets its own."""
    given = {"linger.ms": 1, "session.timeout.ms": 6000, "sasl.username": "me", "partitions": 3}
    options = parse(URL, given)
    assert options.own.partitions == 3
    producer, consumer, admin = options.producer(500_000), options.consumer("g"), options.admin()
    assert (producer["linger.ms"], "session.timeout.ms" in producer) == (1, False)
    assert (consumer["session.timeout.ms"], "linger.ms" in consumer) == (6000, False)
    assert all(config["sasl.username"] == "me" for config in (producer, consumer, admin))
    assert not any("partitions" in config for config in (producer, consumer, admin))


def test_a_producer_lingers_in_a_backlog_unless_a_user_has_said_how_long() -> None:
    options = parse(URL, {})
    assert options.producer(5_000)["linger.ms"] < 1 < options.producer(5_000, patient=True)["linger.ms"]
    for name in ("linger.ms", "queue.buffering.max.ms"):
        options = parse(URL, {name: 7})
        for patient in (False, True):
            config = options.producer(5_000, patient=patient)
            assert [config.get(each) for each in ("linger.ms", "queue.buffering.max.ms") if each in config] == [7]
        assert not options.lingers_adaptively


def test_a_batch_stays_below_the_topics_limit_whatever_was_set() -> None:
    assert parse(URL, {"batch.size": 900_000}).producer(5_000)["batch.size"] == 5_000
    assert parse(URL, {"batch.size": 1_000}).producer(5_000)["batch.size"] == 1_000


@pytest.mark.parametrize(
    "url", ["kafka:host:1", "kafka://", "kafka://host", "kafka://h:1/x", "kafka://h:1,", "kafka://:1"]
)
def test_urls_that_name_no_server(url: str) -> None:
    with pytest.raises(ConfigError):
        broker_for(url)


def test_several_servers() -> None:
    assert parse("kafka://a:1,b:2", {}).servers == "a:1,b:2"
    assert broker_for("kafka://a:1,b:2").url == "kafka://a:1,b:2"


async def test_secrets_stay_secret(caplog: pytest.LogCaptureFixture) -> None:
    """No password in a repr, an error or a log line."""
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-hunter2"
    broker = broker_for(
        URL, {"sasl.password": secret, "sasl.mechanisms": "PLAIN", "security.protocol": "sasl_plaintext"}
    )
    assert secret not in repr(broker) + repr(broker.__dict__)
    with pytest.raises(ConfigError) as caught:
        broker_for(f"kafka://me:{secret}@host:1")
    assert secret not in str(caught.value)
    bad = broker_for(URL, {"sasl.password": secret, "no.such.setting": "x"})
    with pytest.raises(ConfigError, match=r"no\.such\.setting") as caught:
        await bad.subscribe("g", ["t"])
    assert secret not in str(caught.value)
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        await bad.check()
    assert secret not in caplog.text

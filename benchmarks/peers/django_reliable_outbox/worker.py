"""django-reliable-outbox to Kafka: its own worker command, its own Kafka destination, on settings given here.

``worker.py migrate HOST PORT USER PASSWORD DATABASE`` makes its tables; ``worker.py outbox_worker … BOOTSTRAP BATCH
LINGER_MS`` relays. Runs in an environment of its own (requirements.txt), so it imports nothing of Relevo.
"""

from __future__ import annotations

import sys

import django
from django.conf import settings
from django.core.management import call_command


def configure(
    host: str, port: str, user: str, password: str, database: str, bootstrap: str, batch: str, linger_ms: str
) -> None:
    config = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": float(linger_ms)}
    kafka = "reliable_outbox.destinations.kafka.KafkaDestination"
    settings.configure(
        INSTALLED_APPS=["reliable_outbox"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "CONN_MAX_AGE": None,
                "HOST": host,
                "PORT": port,
                "USER": user,
                "PASSWORD": password,
                "NAME": database,
            }
        },
        RELIABLE_OUTBOX={
            "BATCH_SIZE": int(batch),
            "LEASE_SECONDS": 600,  # a batch is published one by one: a short lease would end in its middle
            "DESTINATIONS": {
                "default": {"BACKEND": "reliable_outbox.destinations.local.LocalHandlers"},
                "kafka": {"BACKEND": kafka, "OPTIONS": {"topic": "{name}", "config": config}},
            },
            "ROUTES": {"*": "kafka"},
        },
    )
    django.setup()


def main(what: str, *rest: str) -> None:
    configure(*rest[:5], *(rest[5:] or ("", "10", "0")))
    call_command(what, **({"verbosity": 0} if what == "migrate" else {}))


if __name__ == "__main__":
    main(*sys.argv[1:])

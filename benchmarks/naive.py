"""The relay most articles show, as a yardstick: rows ``FOR UPDATE SKIP LOCKED``, publish, one flush per batch, mark,
commit. It has no lanes, leases, holds or CloudEvents headers, keeps a transaction open while the broker is waited for,
and loses the order of a key as soon as two of them run.

``python -m benchmarks.naive DATABASE_URL BOOTSTRAP COUNT``
"""

from __future__ import annotations

import sys

import psycopg
from confluent_kafka import Producer


def main(database: str, bootstrap: str, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 262144,
        }
    )
    done = 0
    with psycopg.connect(database) as connection:
        while done < count:
            rows = connection.execute(
                "select seq, topic, key, type, event_id::text, payload from relevo_outbox where settled_at is null "
                "order by seq for update skip locked limit 100"
            ).fetchall()
            for _, topic, key, type_, event_id, payload in rows:
                producer.produce(topic, payload, key=key, headers=[("id", event_id), ("type", type_)])
            producer.flush()
            connection.execute(
                "update relevo_outbox set settled_at = now(), outcome = 'published' where seq = any(%s)",
                ([row[0] for row in rows],),
            )
            connection.commit()
            done += len(rows)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

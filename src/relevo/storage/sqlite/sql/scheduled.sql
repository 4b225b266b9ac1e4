-- Messages to be sent later: written by the caller, moved into the outbox when they are due by this machine's clock.

-- name: scheduled.add
insert into {scheduled} (due_at, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                         aggregate_version, payload, content_type, headers)
values (coalesce(:at_us / 1000, cast((julianday('now') - 2440587.5) * 86400000 as integer) + :after_us / 1000),
        :event_id, :bucket, :kind, :topic, :key, :type, :schema_version, :aggregate_type, :aggregate_id,
        :aggregate_version, :payload, :content_type, :headers);

-- name: scheduled.cancel
delete from {scheduled} where event_id = :event_id returning event_id;

-- name: scheduled.find
select 1 from {scheduled} where event_id = :event_id;

-- name: scheduled.next_due
-- Seconds until the next one is due, at least 0; no row when nothing is scheduled.
select max(0, due_at - cast((julianday('now') - 2440587.5) * 86400000 as integer)) / 1000.0
from {scheduled} where due_at < 253370764800000 order by due_at, schedule_id limit 1;

-- name: scheduled.due
select schedule_id from {scheduled} where due_at <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
order by due_at, schedule_id limit :limit;

-- name: scheduled.copy
-- seq is taken here, in the order in which they were due.
insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                      aggregate_version, payload, content_type, headers)
select event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers
from {scheduled} where schedule_id in (select value from json_each(:ids)) order by due_at, schedule_id;

-- name: scheduled.remove
delete from {scheduled} where schedule_id in (select value from json_each(:ids));

-- name: scheduled.aside
-- The outbox refuses it: it stays where it is, and is not due any more.
update {scheduled} set due_at = 253402214400000 where schedule_id = :schedule_id returning event_id, topic;

-- Messages to be sent later: written by the caller, moved into the outbox when they are due by this database's clock.

-- name: scheduled.add
insert into {scheduled} (due_at, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                         aggregate_version, payload, content_type, headers)
values (coalesce(timestamptz 'epoch' + cast(:at_us as bigint) * interval '1 microsecond',
                 clock_timestamp() + cast(:after_us as bigint) * interval '1 microsecond'),
        cast(cast(:event_id as text) as uuid), cast(:bucket as smallint), cast(:kind as text), cast(:topic as text),
        cast(:key as bytea), cast(:type as text), cast(:schema_version as integer), cast(:aggregate_type as text),
        cast(:aggregate_id as text), cast(:aggregate_version as bigint), cast(:payload as bytea),
        cast(:content_type as text), cast(cast(:headers as text) as jsonb));

-- name: scheduled.cancel
-- Waits for a move that is under way; no row comes back when it has been moved.
delete from {scheduled} where event_id = cast(cast(:event_id as text) as uuid) returning 1;

-- name: scheduled.find
select 1 from {scheduled} where event_id = cast(cast(:event_id as text) as uuid);

-- name: scheduled.next_due
-- Seconds until the next one is due, at least 0; no row when nothing is scheduled. What cannot be moved was put behind
-- the year 9998, which is the last that can be asked for; a row by hand may have an infinite time.
select case when due_at <= clock_timestamp() then 0
            else cast(extract(epoch from due_at - clock_timestamp()) as double precision) end
from {scheduled} where due_at < timestamptz '9999-01-01 00:00:00+00' order by due_at, schedule_id limit 1;

-- name: scheduled.due
select schedule_id from {scheduled} where due_at <= clock_timestamp()
order by due_at, schedule_id limit cast(:limit as integer);

-- name: scheduled.move_some
-- As `move`, of those that `due` named: one of them cannot be moved.
with due as (
  select schedule_id from {scheduled} where schedule_id = any(cast(:ids as bigint[]))
  order by due_at, schedule_id for update skip locked
), gone as (
  delete from {scheduled} s using due where s.schedule_id = due.schedule_id
  returning s.*
)
insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                      aggregate_version, payload, content_type, headers)
select event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers
from gone order by due_at, schedule_id
returning 1;

-- name: scheduled.aside
-- The outbox refuses it: it stays where it is, and is not due any more.
update {scheduled} set due_at = timestamptz '9999-12-31 00:00:00+00' where schedule_id = cast(:schedule_id as bigint)
returning cast(event_id as text), topic;

-- name: scheduled.move
-- seq is taken here, in the order in which they were due. What somebody is cancelling is passed over.
with due as (
  select schedule_id from {scheduled} where due_at <= clock_timestamp()
  order by due_at, schedule_id limit cast(:limit as integer) for update skip locked
), gone as (
  delete from {scheduled} s using due where s.schedule_id = due.schedule_id
  returning s.*
)
insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                      aggregate_version, payload, content_type, headers)
select event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers
from gone order by due_at, schedule_id
returning 1;

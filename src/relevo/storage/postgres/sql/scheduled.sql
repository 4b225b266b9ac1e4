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
-- Seconds until the next one is due, at least 0; no row when nothing is scheduled.
select greatest(0, cast(extract(epoch from due_at - clock_timestamp()) as double precision))
from {scheduled} order by due_at, schedule_id limit 1;

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

-- The source `mark` on SQLite. One writer at a time: seq order is commit order, so there are no late rows. What is in
-- flight is below `after`, unless reading started over meanwhile, for other topics than before.

-- name: mark.take
with owned as materialized (
  select l.lane from json_each(:lanes) o
  join json_each(:epochs) e on e.key = o.key
  join {lane} l on l.lane = o.value and l.epoch = e.value and l.holder = :holder
), page as (
  select * from {outbox}
  where settled_at is null and seq > :after and bucket % :lane_count in (select lane from owned)
    and topic not in (select value from json_each(:without))
    and seq not in (select value from json_each(:in_flight))
  order by seq limit :messages_max
)
select seq, bucket % :lane_count, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers, created_at, 0
from (
  select page.*, sum(coalesce(length(payload), 0)) over (order by seq rows unbounded preceding) as bytes from page
)
where bytes - coalesce(length(payload), 0) < :bytes_max
order by seq;

-- name: mark.unbucketed
select seq, key, event_id from {outbox} where bucket is null order by seq limit 1000;

-- name: mark.bucket
update {outbox} set bucket = :bucket where seq = :seq;

-- name: mark.horizon
-- Asked before a page that may come back empty because what is there belongs to other lanes or to paused topics.
select (select seq from {outbox} where settled_at is null and seq > :floor order by seq desc limit 1), 0;

-- name: mark.settle
update {outbox} set settled_at = cast((julianday('now') - 2440587.5) * 86400000 as integer), outcome = :outcome
where seq in (select value from json_each(:seqs)) and settled_at is null;

-- name: mark.hold
-- Complete copies into one key's queue; the same transaction marks the originals.
insert into {held_message} (side, topic, held_key, event_id, position, bucket, kind, key, type, schema_version,
  aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
select 'relay', topic, :held_key, event_id, seq, bucket, kind, key, type, schema_version, aggregate_type, aggregate_id,
  aggregate_version, payload, content_type, headers, created_at
from {outbox}
where seq in (select value from json_each(:seqs)) and settled_at is null
order by seq
on conflict (side, consumer, topic, held_key, event_id) do nothing;

-- name: relay_held.key
insert into {held_key} (side, topic, key, alone, bucket, state, reason, error_type)
values ('relay', :topic, :key, :alone, :bucket, :state, :reason, :code)
on conflict (side, consumer, topic, key) do nothing;

-- name: relay_held.lock
select state from {held_key} where side = 'relay' and consumer = '' and topic = :topic and key = :key;

-- name: relay_held.load
select topic, key from {held_key}
where side = 'relay' and bucket % :lane_count in (select value from json_each(:lanes));

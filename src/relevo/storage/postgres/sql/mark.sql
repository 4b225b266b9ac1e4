-- The source `mark`: state, not position. A row is due while settled_at is null.

-- name: mark.take
-- One statement, one snapshot: everything unsettled in seq order, but for what is in flight. A row that commits late
-- has a seq below `after`; it is found by the first branch, so nothing waits for it and it never waits for a backlog.
-- Up to `floor` everything is known to be settled or rolled back: without it each page would walk the dead index
-- entries of all pages before it (measured: 57k rows/s at 20,000 rows fell to 22k at 200,000).
-- The lanes are checked against their rows, so that a relay whose epochs are gone reads nothing.
-- Id and time come as the text they have on the wire: the server writes it ten times as fast as Python would.
with owned as materialized (
  select array_agg(l.lane is not null order by n.lane) as lanes
  from generate_series(0, :lane_count - 1) as n (lane)
  left join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch) on o.lane = n.lane
  left join {lane} l on l.lane = o.lane and l.epoch = o.epoch and l.holder = :holder
), late as materialized (
  -- Rows of other lanes or of paused topics go here, where they are at hand: each page walks them again.
  select seq from {outbox} where settled_at is null and seq > :floor and seq <= :after
    and (select lanes from owned)[bucket % :lane_count + 1] and topic <> all(cast(:without as text[]))
  except all select unnest(cast(:in_flight as bigint[]))
), page as (
  (select o.* from late cross join lateral (select * from {outbox} l where l.seq = late.seq offset 0) o
   order by o.seq limit :messages_max)
  union all
  (select o.* from {outbox} o
   where o.settled_at is null and o.seq > :after
     and (select lanes from owned)[o.bucket % :lane_count + 1] and o.topic <> all(cast(:without as text[]))
   order by o.seq limit :messages_max)
)
select seq, (bucket % :lane_count)::integer,
       topic, key, payload, textsend(event_id::text), textsend(btrim(to_json(created_at)::text, '"')), kind, type,
       schema_version, content_type, aggregate_type, aggregate_id, aggregate_version, headers::text,
       (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint)
from (
  select page.*, sum(coalesce(octet_length(payload), 0)) over (order by seq rows unbounded preceding) as bytes
  from page
) as sized
where bytes - coalesce(octet_length(payload), 0) < :bytes_max
order by seq limit :messages_max;

-- name: mark.horizon
-- Asked before a page that may come back empty because what is there belongs to other lanes or to paused topics: the
-- newest of it, and the xmin that the floor may rise by. Read from the end, so it costs nothing however long it is.
select (select seq from {outbox} where settled_at is null and seq > :floor order by seq desc limit 1),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- name: mark.xid
-- An xid that is younger than everything read before in this transaction.
select pg_current_xact_id()::text::bigint;

-- name: mark.settle
update {outbox} set settled_at = clock_timestamp(), outcome = :outcome
where seq = any(cast(:seqs as bigint[])) and settled_at is null;

-- name: mark.free
-- Those of the rows that no other session holds locked; they are ours until this transaction ends.
select seq from {outbox} where seq = any(cast(:seqs as bigint[])) and settled_at is null for update skip locked;

-- name: mark.open
select seq from {outbox} where seq = any(cast(:seqs as bigint[])) and settled_at is null;

-- name: mark.hold
-- Complete copies into one key's queue; the same transaction marks the originals.
insert into {held_message} (side, topic, held_key, event_id, position, bucket, kind, key, type, schema_version,
  aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
select 'relay', topic, :held_key, event_id, seq, bucket, kind, key, type, schema_version,
  aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at
from {outbox}
where seq = any(cast(:seqs as bigint[])) and settled_at is null
order by seq
on conflict (side, consumer, topic, held_key, event_id) do nothing;

-- name: relay_held.key
insert into {held_key} (side, topic, key, alone, bucket, state, reason, error_type)
values ('relay', :topic, :key, :alone, :bucket, :state, :reason, :code)
on conflict (side, consumer, topic, key) do nothing;

-- name: relay_held.lock
select state from {held_key} where side = 'relay' and consumer = '' and topic = :topic and key = :key for update;

-- name: relay_held.load
select topic, key from {held_key}
where side = 'relay' and bucket % :lane_count = any(cast(:lanes as smallint[]));

-- Draining on the relay's side: keys an operator freed, worked off by the owner of their lane.

-- name: relay_held.due
-- A claim another relay left behind does not matter: the lane is ours.
select topic, key, (bucket % :lane_count)::integer from {held_key} k
where side = 'relay' and consumer = '' and state <> 'parked' and (due_at is null or due_at <= clock_timestamp())
  and bucket % :lane_count = any(cast(:lanes as smallint[])) and topic <> all(cast(:without as text[]))
  and not exists (select from {pause} p
                  where p.kind = 'key' and p.topic = k.topic and p.key = k.key and p.consumer = '')
order by due_at nulls first, since
limit :limit;

-- name: relay_held.heads
-- The first messages of a key's queue, bounded by count and bytes, at least one.
select held_seq, position, edited_from is not null, event_id, kind, topic, key, type, schema_version, aggregate_type,
       aggregate_id, aggregate_version, payload, content_type, headers::text, created_at
from (
  select heads.*, sum(coalesce(octet_length(payload), 0))
                  over (order by position, held_seq rows unbounded preceding) as bytes
  from (select * from {held_message}
        where side = 'relay' and consumer = '' and topic = :topic and held_key = :key
        order by position, held_seq limit :messages_max) as heads
) as sized
where bytes - coalesce(octet_length(payload), 0) < :bytes_max
order by position, held_seq;

-- name: relay_held.remove
delete from {held_message} where held_seq = any(cast(:ids as bigint[]));

-- name: relay_held.settle
-- The original says what became of its copy.
update {outbox} set settled_at = clock_timestamp(), outcome = :outcome
where seq = any(cast(:seqs as bigint[])) and outcome = 'held';

-- name: relay_held.rest
select 1 from {held_message} where side = 'relay' and consumer = '' and topic = :topic and held_key = :key limit 1;

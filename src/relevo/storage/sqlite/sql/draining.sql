-- Draining on the relay's side: keys an operator freed, worked off by the owner of their lane.

-- name: relay_held.due
select topic, key, bucket % :lane_count from {held_key} k
where side = 'relay' and consumer = '' and state <> 'parked'
  and coalesce(due_at, 0) <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
  and bucket % :lane_count in (select value from json_each(:lanes))
  and topic not in (select value from json_each(:without))
  and not exists (select 1 from {pause} p
                  where p.kind = 'key' and p.topic = k.topic and p.key = k.key and p.consumer = '')
order by coalesce(due_at, 0), since
limit :limit;

-- name: relay_held.heads
select held_seq, position, edited_from is not null, event_id, kind, topic, key, type, schema_version, aggregate_type,
       aggregate_id, aggregate_version, payload, content_type, headers, created_at
from (
  select heads.*, sum(coalesce(length(payload), 0))
                  over (order by position, held_seq rows unbounded preceding) as bytes
  from (select * from {held_message}
        where side = 'relay' and consumer = '' and topic = :topic and held_key = :key
        order by position, held_seq limit :messages_max) as heads
) as sized
where bytes - coalesce(length(payload), 0) < :bytes_max
order by position, held_seq;

-- name: relay_held.remove
delete from {held_message} where held_seq in (select value from json_each(:ids));

-- name: relay_held.settle
update {outbox} set settled_at = cast((julianday('now') - 2440587.5) * 86400000 as integer), outcome = :outcome
where seq in (select value from json_each(:seqs)) and outcome = 'held';

-- name: relay_held.rest
select 1 from {held_message} where side = 'relay' and consumer = '' and topic = :topic and held_key = :key limit 1;

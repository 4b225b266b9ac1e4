-- Held keys and their queues, either side. Every writing transaction is immediate, which is the lock.

-- name: held.lock_key
select state, epoch, attempts from {held_key}
where side = :side and consumer = :consumer and topic = :topic and key = :key;

-- name: held.lock_key_soon
select state, epoch, attempts from {held_key}
where side = :side and consumer = :consumer and topic = :topic and key = :key;

-- name: held.later
-- A head that another process runs just now: due again in a while, in its place.
update {held_key}
set due_at = cast((julianday('now') - 2440587.5) * 86400000 + :delay_s * 1000 as integer), expires_at = 0,
    epoch = epoch + 1, attempts = max(0, attempts - :refund),
    holder = case when :suspect = 1 then '00000000-0000-0000-0000-000000000000' end
where side = :side and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning 1;

-- name: held.among
select h.topic, lower(hex(h.key)) from {held_key} h
where h.side = :side and h.consumer = :consumer
  and exists (select 1 from json_each(:topics) t join json_each(:keys) k on k.key = t.key
              where t.value = h.topic and k.value = lower(hex(h.key)));

-- name: held.add_key
insert into {held_key} (side, consumer, topic, key, alone, bucket, state, reason, error_type, error, attempts, due_at)
values (:side, :consumer, :topic, :key, :alone, :bucket, :state, :reason, :error_type, :error, :attempts,
        cast((julianday('now') - 2440587.5) * 86400000 + :delay_s * 1000 as integer))
on conflict (side, consumer, topic, key) do nothing
returning 1;

-- name: held.append
-- Without a position: behind everything that is there, by this machine's clock.
insert into {held_message} (side, consumer, topic, held_key, event_id, position, shard, bucket, kind, key, type,
  schema_version, aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
values (:side, :consumer, :topic, :held_key, :event_id,
  coalesce(:position, max(cast((julianday('now') - 2440587.5) * 86400000 as integer) * 1000,
    coalesce((select max(m.position) + 1 from {held_message} m
              where m.side = :side and m.consumer = :consumer and m.topic = :topic and m.held_key = :held_key), 0))),
  :shard, :bucket, :kind, :key, :type,
  :schema_version, :aggregate_type, :aggregate_id, :aggregate_version, :payload, :content_type, :headers,
  :created_us / 1000)
on conflict (side, consumer, topic, held_key, event_id) do nothing;

-- name: held.next_due
select max(0, min(max(coalesce(due_at, 0), expires_at))
              - cast((julianday('now') - 2440587.5) * 86400000 as integer)) / 1000.0
from {held_key} k
where side = :side and consumer = :consumer and state <> 'parked'
  and not exists (select 1 from {pause} p
                  where p.kind = 'consumer' and p.consumer = :consumer
                     or p.kind = 'topic' and p.topic = k.topic
                     or p.kind = 'key' and p.topic = k.topic and p.key = k.key and p.consumer = :consumer)
having count(*) > 0;

-- name: held.due
-- What somebody paused waits, whatever its state; resumed, it is due.
select topic, key, alone, epoch, attempts, holder is not null
from {held_key} k
where side = :side and consumer = :consumer and state <> 'parked'
  and coalesce(due_at, 0) <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
  and expires_at <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
  and not exists (select 1 from {pause} p
                  where p.kind = 'consumer' and p.consumer = :consumer
                     or p.kind = 'topic' and p.topic = k.topic
                     or p.kind = 'key' and p.topic = k.topic and p.key = k.key and p.consumer = :consumer)
order by coalesce(due_at, 0), since
limit :limit;

-- name: held.claim
update {held_key}
set state = 'draining', epoch = epoch + 1, holder = :holder,
    expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where side = :side and consumer = :consumer and topic = :topic and key = :key
returning epoch;

-- name: held.first
select held_seq, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers, created_at * 1000, position, shard
from {held_message}
where side = :side and consumer = :consumer and topic = :topic and held_key = :key
order by position, held_seq
limit 1;

-- name: held.count
update {held_key}
set attempts = attempts + :spend,
    expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where side = :side and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning attempts;

-- name: held.remove_message
delete from {held_message} where held_seq = :held_seq returning 1;

-- name: held.advance
update {held_key} set attempts = 0
where side = :side and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning 1;

-- name: held.put_back
update {held_key}
set state = :state, reason = :reason, error_type = :error_type, error = :error, attempts = :attempts,
    due_at = cast((julianday('now') - 2440587.5) * 86400000 + :delay_s * 1000 as integer),
    holder = null, expires_at = 0, epoch = epoch + 1
where side = :side and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning 1;

-- name: held.release
update {held_key}
set holder = null, expires_at = 0, epoch = epoch + 1, attempts = max(0, attempts - :refund)
where side = :side and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning 1;

-- name: held.remove_key
delete from {held_key}
where side = :side and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning 1;

-- name: held.renew
update {held_key} set expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where side = :side and consumer = :consumer and state = 'draining' and holder = :holder
returning 1;

-- name: held.counts
select state, count(*) from {held_key} where side = :side and consumer = :consumer group by state;

-- Held keys for people: find, look, act. Every act locks the key's row first and leaves a claimed one alone.

-- part: parked.selected
-- Keys that a filter selects. A null parameter selects nothing less.
(:side is null or k.side = :side)
  and (:consumer is null or k.consumer = :consumer)
  and (:topic is null or k.topic = :topic)
  and (:key is null or k.key = :key)
  and (:state is null or k.state = :state)
  and (:error is null or k.error_type = :error
       or substr(k.error_type, 1, length(:error) + 4) = :error || ' at ')
  and (:older_s is null
       or k.since <= cast((julianday('now') - 2440587.5) * 86400000 as integer) - :older_s * 1000)
  and (:event_id is null or exists (
       select 1 from {held_message} m
       where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key)
         and m.event_id = :event_id))

-- name: parked.page
-- Keys that a filter selects, after a given one, in the order of their names.
select k.side, k.consumer, k.topic, k.key, k.alone, k.state, k.reason, k.error_type, k.error, k.attempts,
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - k.since) / 1000.0,
       k.holder is not null and k.expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer),
       (select count(*) from {held_message} m
        where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key))
from {held_key} k
where (:after_side is null
       or (k.side, k.consumer, k.topic, k.key)
          > (:after_side, :after_consumer, :after_topic, :after_key))
  and {part:parked.selected}
order by k.side, k.consumer, k.topic, k.key
limit :limit;

-- name: parked.groups
-- Everything that a filter selects, counted by what went wrong; the group with most keys first.
select k.side, k.consumer, k.topic, k.state, k.error_type, min(k.reason), count(*),
       sum((select count(*) from {held_message} m
            where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key))),
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - min(k.since)) / 1000.0
from {held_key} k
where {part:parked.selected}
group by k.side, k.consumer, k.topic, k.state, k.error_type
order by count(*) desc, k.side, k.consumer, k.topic, k.state, k.error_type
limit :limit;

-- name: parked.queue
-- One key's queue in drain order, from a place on.
select held_seq, event_id, type, position, shard, content_type, headers, payload,
       edited_from, (cast((julianday('now') - 2440587.5) * 86400000 as integer) - held_at) / 1000.0,
       schema_version, kind, key, aggregate_type, aggregate_id, aggregate_version,
       created_at * 1000
from {held_message}
where side = :side and consumer = :consumer and topic = :topic
  and held_key = :key
order by position, held_seq
limit :limit offset :offset;

-- name: parked.of_event
-- The keys in whose queue a message stands.
select side, consumer, topic, held_key, held_seq from {held_message} where event_id = :event_id;

-- name: parked.lock
select state, epoch,
       holder is not null and expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer),
       attempts, reason, error_type
from {held_key}
where side = :side and consumer = :consumer and topic = :topic
  and key = :key;

-- name: parked.count
select count(*) from {held_message}
where side = :side and consumer = :consumer and topic = :topic
  and held_key = :key;

-- name: parked.free
-- From here on the owner of the lane, or a process of the consumer, drains it.
update {held_key}
set state = 'draining', due_at = null, attempts = 0, holder = null, expires_at = 0, epoch = epoch + 1
where side = :side and consumer = :consumer and topic = :topic
  and key = :key;

-- name: parked.forget
-- The inbox row keeps a redelivery from bringing the message back.
insert into {inbox} (consumer, event_id, outcome)
select consumer, event_id, :outcome from {held_message}
where side = 'consumer' and side = :side and consumer = :consumer
  and topic = :topic and held_key = :key
  and (:held_seq is null or held_seq = :held_seq)
on conflict (consumer, event_id, generation) do nothing;

-- name: parked.drop
delete from {held_message}
where side = :side and consumer = :consumer and topic = :topic
  and held_key = :key
  and (:held_seq is null or held_seq = :held_seq)
returning event_id;

-- name: parked.live
-- Only where the queue is empty.
delete from {held_key} as k
where side = :side and consumer = :consumer and topic = :topic
  and key = :key
  and not exists (select 1 from {held_message} m
                  where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key))
returning 1;

-- name: parked.touch
-- Whoever held an older view of the key finds it changed.
update {held_key} set epoch = epoch + 1, holder = null, expires_at = 0
where side = :side and consumer = :consumer and topic = :topic
  and key = :key;

-- name: parked.replace
-- A new message in the place of the old one.
update {held_message}
set event_id = :new_id, edited_from = event_id, payload = :payload,
    headers = :headers
where held_seq = :held_seq;

-- name: dlq.forgotten
-- A message that comes back from a dead-letter topic is no longer given up.
delete from {inbox}
where consumer = :consumer and event_id = :event_id and generation = 0
  and outcome in ('skipped', 'discarded');

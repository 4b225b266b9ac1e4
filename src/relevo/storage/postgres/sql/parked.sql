-- Held keys for people: find, look, act. Every act locks the key's row first and leaves a claimed one alone.

-- part: parked.selected
-- Keys that a filter selects. A null parameter selects nothing less.
(cast(:side as text) is null or k.side = cast(:side as text))
  and (cast(:consumer as text) is null or k.consumer = cast(:consumer as text))
  and (cast(:topic as text) is null or k.topic = cast(:topic as text))
  and (cast(:key as bytea) is null or k.key = cast(:key as bytea))
  and (cast(:state as text) is null or k.state = cast(:state as text))
  and (cast(:error as text) is null or k.error_type = cast(:error as text)
       or starts_with(k.error_type, cast(:error as text) || ' at '))
  and (cast(:older_s as double precision) is null
       or k.since <= clock_timestamp() - make_interval(secs => cast(:older_s as double precision)))
  and (cast(:event_id as uuid) is null or exists (
       select from {held_message} m
       where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key)
         and m.event_id = cast(:event_id as uuid)))

-- name: parked.page
-- Keys that a filter selects, after a given one, in the order of their names.
select k.side, k.consumer, k.topic, k.key, k.alone, k.state, k.reason, k.error_type, k.error, k.attempts,
       cast(extract(epoch from clock_timestamp() - k.since) as double precision),
       k.holder is not null and k.expires_at > clock_timestamp(),
       (select count(*) from {held_message} m
        where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key))
from {held_key} k
where (cast(:after_side as text) is null
       or (k.side, k.consumer, k.topic, k.key)
          > (cast(:after_side as text), cast(:after_consumer as text), cast(:after_topic as text), cast(:after_key as bytea)))
  and {part:parked.selected}
order by k.side, k.consumer, k.topic, k.key
limit cast(:limit as integer);

-- name: parked.groups
-- Everything that a filter selects, counted by what went wrong; the group with most keys first.
select k.side, k.consumer, k.topic, k.state, k.error_type, min(k.reason), count(*), sum(m.messages),
       cast(extract(epoch from clock_timestamp() - min(k.since)) as double precision)
from {held_key} k
cross join lateral (select count(*) as messages from {held_message} m
                    where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key)) m
where {part:parked.selected}
group by k.side, k.consumer, k.topic, k.state, k.error_type
order by count(*) desc, k.side, k.consumer, k.topic, k.state, k.error_type
limit cast(:limit as integer);

-- name: parked.queue
-- One key's queue in drain order, from a place on.
select held_seq, cast(event_id as text), type, position, shard, content_type, cast(headers as text), payload,
       cast(edited_from as text), cast(extract(epoch from clock_timestamp() - held_at) as double precision),
       schema_version, kind, key, aggregate_type, aggregate_id, aggregate_version,
       cast(extract(epoch from greatest(least(created_at, '9999-12-31'), '0001-01-01')) * 1000000 as bigint)
from {held_message}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and held_key = cast(:key as bytea)
order by position, held_seq
limit cast(:limit as integer) offset cast(:offset as integer);

-- name: parked.of_event
-- The keys in whose queue a message stands.
select side, consumer, topic, held_key, held_seq from {held_message} where event_id = cast(:event_id as uuid);

-- name: parked.lock
select state, epoch, holder is not null and expires_at > clock_timestamp(), attempts, reason, error_type
from {held_key}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea)
for update;

-- name: parked.count
select count(*) from {held_message}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and held_key = cast(:key as bytea);

-- name: parked.free
-- From here on the owner of the lane, or a process of the consumer, drains it.
update {held_key}
set state = 'draining', due_at = null, attempts = 0, holder = null, expires_at = '-infinity', epoch = epoch + 1
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea);

-- name: parked.forget
-- The inbox row keeps a redelivery from bringing the message back.
insert into {inbox} (consumer, event_id, outcome)
select consumer, event_id, cast(:outcome as text) from {held_message}
where side = 'consumer' and side = cast(:side as text) and consumer = cast(:consumer as text)
  and topic = cast(:topic as text) and held_key = cast(:key as bytea)
  and (cast(:held_seq as bigint) is null or held_seq = cast(:held_seq as bigint))
on conflict (consumer, event_id, generation) do nothing;

-- name: parked.drop
delete from {held_message}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and held_key = cast(:key as bytea)
  and (cast(:held_seq as bigint) is null or held_seq = cast(:held_seq as bigint))
returning cast(event_id as text);

-- name: parked.live
-- Only where the queue is empty.
delete from {held_key} k
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea)
  and not exists (select from {held_message} m
                  where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key))
returning 1;

-- name: parked.touch
-- Whoever held an older view of the key finds it changed.
update {held_key} set epoch = epoch + 1, holder = null, expires_at = '-infinity'
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea);

-- name: parked.replace
-- A new message in the place of the old one.
update {held_message}
set event_id = cast(:new_id as uuid), edited_from = event_id, payload = cast(:payload as bytea),
    headers = cast(:headers as jsonb)
where held_seq = cast(:held_seq as bigint);

-- name: dlq.forgotten
-- A message that comes back from a dead-letter topic is no longer given up.
delete from {inbox}
where consumer = cast(:consumer as text) and event_id = cast(:event_id as uuid) and generation = 0
  and outcome in ('skipped', 'discarded');

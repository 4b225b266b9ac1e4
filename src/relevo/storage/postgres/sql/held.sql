-- Held keys and their queues, either side. A live key has no row, so `for update` on it locks nothing: only the owner of
-- the lane or shard makes live -> held; every other change locks the row.

-- name: held.lock_key
select state, epoch, attempts from {held_key}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea)
for update;

-- name: held.lock_key_soon
-- As `held.lock_key`, in a handler's transaction, with the bounds of `inbox.insert_soon`, which come first: the condition
-- on them holds for no row in particular, so it is looked at before any.
with bound as materialized (
  select set_config('relevo.lock_timeout', coalesce(nullif(current_setting('relevo.lock_timeout', true), ''),
                                                    current_setting('lock_timeout')), true),
         set_config('lock_timeout', cast(:lock_ms as text), true) as lock_ms,
         set_config('idle_in_transaction_session_timeout',
                    case current_setting('idle_in_transaction_session_timeout') when '0' then cast(:idle_ms as text)
                    else current_setting('idle_in_transaction_session_timeout') end, true)
)
select state, epoch, attempts from {held_key}
where (select lock_ms from bound) is not null
  and side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea)
for update;

-- name: held.later
-- A head that another process runs just now: due again in a while, in its place. `refund`: the attempt that was counted
-- for it. A suspect gets a holder of zeros: no process renews its lease, and the next one to claim it runs it alone, too.
update {held_key}
set due_at = clock_timestamp() + make_interval(secs => cast(:delay_s as double precision)), expires_at = '-infinity',
    epoch = epoch + 1, attempts = greatest(0, attempts - cast(:refund as integer)),
    holder = case when cast(:suspect as integer) = 1
                  then cast('00000000-0000-0000-0000-000000000000' as uuid) end
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea) and epoch = cast(:epoch as bigint)
returning 1;

-- name: held.among
-- Which of these keys are held; `keys` in hexadecimal. Nothing is locked: who finds one takes the long way for it.
select h.topic, encode(h.key, 'hex') from {held_key} h
join unnest(cast(:topics as text[]), cast(:keys as text[])) as wanted (topic, key)
  on h.topic = wanted.topic and h.key = decode(wanted.key, 'hex')
where h.side = cast(:side as text) and h.consumer = cast(:consumer as text);

-- name: held.add_key
insert into {held_key} (side, consumer, topic, key, alone, bucket, state, reason, error_type, error, attempts, due_at)
values (cast(:side as text), cast(:consumer as text), cast(:topic as text), cast(:key as bytea),
        cast(:alone as integer) = 1, cast(:bucket as smallint), cast(:state as text), cast(:reason as text),
        cast(:error_type as text), cast(:error as text), cast(:attempts as integer),
        clock_timestamp() + make_interval(secs => cast(:delay_s as double precision)))
on conflict (side, consumer, topic, key) do nothing
returning 1;

-- name: held.append
-- Without a position: behind everything that is there, by this database's clock and not by a process's.
insert into {held_message} (side, consumer, topic, held_key, event_id, position, shard, bucket, kind, key, type,
  schema_version, aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
values (cast(:side as text), cast(:consumer as text), cast(:topic as text), cast(:held_key as bytea),
  cast(cast(:event_id as text) as uuid),
  coalesce(cast(:position as bigint), greatest(
    cast(extract(epoch from clock_timestamp()) * 1000000 as bigint),
    (select max(m.position) + 1 from {held_message} m
     where m.side = cast(:side as text) and m.consumer = cast(:consumer as text) and m.topic = cast(:topic as text)
       and m.held_key = cast(:held_key as bytea)))),
  cast(:shard as text), cast(:bucket as smallint),
  cast(:kind as text), cast(:key as bytea), cast(:type as text), cast(:schema_version as integer),
  cast(:aggregate_type as text), cast(:aggregate_id as text), cast(:aggregate_version as bigint),
  cast(:payload as bytea), cast(:content_type as text), cast(cast(:headers as text) as jsonb),
  timestamptz 'epoch' + cast(:created_us as bigint) * interval '1 microsecond')
on conflict (side, consumer, topic, held_key, event_id) do nothing;

-- name: held.next_due
-- Seconds until the next key can be claimed, at least 0; no row when there is none.
select greatest(0, extract(epoch from min(greatest(due_at, expires_at, clock_timestamp())) - clock_timestamp())
                   ::double precision)
from {held_key} k
where side = cast(:side as text) and consumer = cast(:consumer as text) and state <> 'parked'
  and not exists (select from {pause} p
                  where p.kind = 'consumer' and p.consumer = cast(:consumer as text)
                     or p.kind = 'topic' and p.topic = k.topic
                     or p.kind = 'key' and p.topic = k.topic and p.key = k.key and p.consumer = cast(:consumer as text))
having count(*) > 0;

-- name: held.due
-- What somebody paused waits, whatever its state; resumed, it is due.
select topic, key, alone, epoch, attempts, holder is not null
from {held_key} k
where side = cast(:side as text) and consumer = cast(:consumer as text) and state <> 'parked'
  and (due_at is null or due_at <= clock_timestamp()) and expires_at <= clock_timestamp()
  and not exists (select from {pause} p
                  where p.kind = 'consumer' and p.consumer = cast(:consumer as text)
                     or p.kind = 'topic' and p.topic = k.topic
                     or p.kind = 'key' and p.topic = k.topic and p.key = k.key and p.consumer = cast(:consumer as text))
order by due_at nulls first, since
limit cast(:limit as integer)
for update of k skip locked;

-- name: held.claim
update {held_key}
set state = 'draining', epoch = epoch + 1, holder = cast(:holder as uuid),
    expires_at = clock_timestamp() + make_interval(secs => cast(:lease_s as double precision))
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea)
returning epoch;

-- name: held.first
select held_seq, cast(event_id as text), kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, cast(headers as text),
       cast(extract(epoch from greatest(least(created_at, '9999-12-31'), '0001-01-01')) * 1000000 as bigint), position, shard
from {held_message}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and held_key = cast(:key as bytea)
order by position, held_seq
limit 1;

-- name: held.count
update {held_key}
set attempts = attempts + cast(:spend as integer),
    expires_at = clock_timestamp() + make_interval(secs => cast(:lease_s as double precision))
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea) and epoch = cast(:epoch as bigint)
returning attempts;

-- name: held.remove_message
delete from {held_message} where held_seq = cast(:held_seq as bigint) returning 1;

-- name: held.advance
-- The head is done: a fresh count for the next. No row: the drain was taken over.
update {held_key} set attempts = 0
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea) and epoch = cast(:epoch as bigint)
returning 1;

-- name: held.put_back
update {held_key}
set state = cast(:state as text), reason = cast(:reason as text), error_type = cast(:error_type as text),
    error = cast(:error as text), attempts = cast(:attempts as integer),
    due_at = clock_timestamp() + make_interval(secs => cast(:delay_s as double precision)),
    holder = null, expires_at = '-infinity', epoch = epoch + 1
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea) and epoch = cast(:epoch as bigint)
returning 1;

-- name: held.release
-- Handed back on a stop: due at once, the attempt that did not happen refunded.
update {held_key}
set holder = null, expires_at = '-infinity', epoch = epoch + 1, attempts = greatest(0, attempts - cast(:refund as integer))
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea) and epoch = cast(:epoch as bigint)
returning 1;

-- name: held.remove_key
delete from {held_key}
where side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and key = cast(:key as bytea) and epoch = cast(:epoch as bigint)
returning 1;

-- name: held.renew
update {held_key} set expires_at = clock_timestamp() + make_interval(secs => cast(:lease_s as double precision))
where side = cast(:side as text) and consumer = cast(:consumer as text) and state = 'draining'
  and holder = cast(:holder as uuid)
returning 1;

-- name: held.counts
select state, count(*) from {held_key}
where side = cast(:side as text) and consumer = cast(:consumer as text) group by state;

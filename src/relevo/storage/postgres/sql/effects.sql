-- Effects: recorded in the caller's transaction, performed after its commit. Times are this database's clock.

-- name: effect.record
-- A second recording of the same name and key is the same effect: no row comes back.
insert into {effect} (name, key, idempotency_key, data, event_id, consumer)
values (cast(:name as text), cast(:key as text), cast(cast(:idempotency_key as text) as uuid),
        cast(cast(:data as text) as jsonb), cast(cast(:event_id as text) as uuid), cast(:consumer as text))
on conflict (name, key) do nothing
returning 1;

-- name: performing.expire
-- Sent, and the lease ran out without a word: nobody here knows whether it was done.
update {effect}
set state = 'unknown', holder = null, epoch = epoch + 1, expires_at = '-infinity', due_at = clock_timestamp(), asked = 0,
    error_type = 'PerformerLost', error = :error
where state = 'sent' and expires_at < clock_timestamp() and name = any(cast(:names as text[]))
returning effect_id, name, key;

-- name: performing.claim
with ready as (
  select effect_id from {effect}
  where state <> 'done' and name = :name and (state = 'pending' or (state = 'unknown' and cast(:ask as integer) = 1))
    and due_at <= clock_timestamp() and expires_at <= clock_timestamp()
  order by due_at, effect_id limit :limit for update skip locked
)
update {effect} e
set holder = cast(:holder as uuid), epoch = e.epoch + 1,
    expires_at = clock_timestamp() + :lease_s * interval '1 second'
from ready where e.effect_id = ready.effect_id
returning e.effect_id, e.name, e.key, cast(e.idempotency_key as text), cast(e.data as text), e.state, e.attempts,
          e.asked, e.epoch, cast(e.event_id as text), e.consumer;

-- name: performing.sent
-- Committed before the act: whoever finds the row later knows that it may have been done.
update {effect}
set state = 'sent', attempts = attempts + 1, sent_at = clock_timestamp()
where effect_id = :effect_id and epoch = :epoch and expires_at > clock_timestamp()
returning attempts;

-- name: performing.unsent
update {effect}
set state = :state, attempts = attempts - 1, holder = null, epoch = epoch + 1, expires_at = '-infinity'
where effect_id = :effect_id and epoch = :epoch and state = 'sent'
returning 1;

-- name: performing.hang
-- Its time-out is over and it still runs: unknown for people, and nobody else's until it ends or this process does.
update {effect}
set state = 'unknown', error_type = 'TimeoutError', error = :error, due_at = clock_timestamp(), asked = 0,
    expires_at = clock_timestamp() + :lease_s * interval '1 second'
where effect_id = :effect_id and epoch = :epoch
returning 1;

-- name: performing.release
update {effect} set holder = null, epoch = epoch + 1, expires_at = '-infinity'
where effect_id = :effect_id and epoch = :epoch
returning 1;

-- name: performing.finish
-- That it was done is a fact also when the lease is over, as long as nobody has decided otherwise meanwhile.
update {effect}
set state = cast(:state as text), result = cast(:result as jsonb), error_type = cast(:error_type as text),
    error = cast(:error as text), asked = :asked, holder = null, epoch = epoch + 1, expires_at = '-infinity',
    due_at = clock_timestamp() + :delay_s * interval '1 second',
    finished_at = case when cast(:state as text) in ('done', 'failed') then clock_timestamp() end
where effect_id = :effect_id
  and (epoch = :epoch or (cast(:state as text) = 'done' and state = 'unknown'))
returning 1;

-- name: effects.list
select effect_id, name, key, state, attempts, asked,
       cast(extract(epoch from clock_timestamp() - created_at) as double precision),
       cast(extract(epoch from due_at - clock_timestamp()) as double precision),
       cast(event_id as text), consumer, error_type, error
from {effect}
where (cast(:name as text) is null or name = cast(:name as text))
  and (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:key as text) is null or key = cast(:key as text))
order by effect_id desc limit :limit;

-- name: effects.show
select effect_id, name, key, state, attempts, asked,
       cast(extract(epoch from clock_timestamp() - created_at) as double precision),
       cast(extract(epoch from due_at - clock_timestamp()) as double precision),
       cast(event_id as text), consumer, error_type, error, cast(idempotency_key as text), cast(data as text),
       cast(result as text), created_at, sent_at, finished_at
from {effect} where effect_id = :effect_id;

-- name: effects.resolve
update {effect}
set state = cast(:state as text), error_type = 'Resolved', error = cast(:why as text), holder = null, epoch = epoch + 1,
    expires_at = '-infinity', due_at = clock_timestamp(), asked = 0,
    finished_at = case when cast(:state as text) = 'done' then clock_timestamp() end
where effect_id = :effect_id
  and (state in ('unknown', 'failed') or state = 'sent' and expires_at < clock_timestamp())
returning name, key;

-- name: effects.counts
select name, state, count(*), cast(extract(epoch from clock_timestamp() - min(created_at)) as double precision)
from {effect} where state <> 'done' group by name, state order by name, state;

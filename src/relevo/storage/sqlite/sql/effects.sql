-- Effects: recorded in the caller's transaction, performed after its commit. Times are this machine's clock.

-- name: effect.record
insert into {effect} (name, key, idempotency_key, data, event_id, consumer)
values (:name, :key, :idempotency_key, :data, :event_id, :consumer)
on conflict (name, key) do nothing
returning 1;

-- name: performing.expire
update {effect}
set state = 'unknown', holder = null, epoch = epoch + 1, expires_at = 0, asked = 0,
    due_at = cast((julianday('now') - 2440587.5) * 86400000 as integer), error_type = 'PerformerLost', error = :error
where state <> 'done' and state = 'sent' and expires_at < cast((julianday('now') - 2440587.5) * 86400000 as integer)
  and name in (select value from json_each(:names))
returning effect_id, name, key;

-- name: performing.claim
update {effect}
set holder = :holder, epoch = epoch + 1,
    expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where effect_id in (
  select effect_id from {effect}
  where state <> 'done' and name = :name and (state = 'pending' or (state = 'unknown' and :ask = 1))
    and due_at <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
    and expires_at <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
  order by due_at, effect_id limit :limit)
returning effect_id, name, key, idempotency_key, data, state, attempts, asked, epoch, event_id, consumer;

-- name: performing.sent
update {effect}
set state = 'sent', attempts = attempts + 1, sent_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where effect_id = :effect_id and epoch = :epoch
  and expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
returning attempts;

-- name: performing.unsent
update {effect}
set state = :state, attempts = attempts - 1, holder = null, epoch = epoch + 1, expires_at = 0
where effect_id = :effect_id and epoch = :epoch and state = 'sent'
returning 1;

-- name: performing.hang
-- Its time-out is over and it still runs: unknown for people, and nobody else's until it ends or this process does.
update {effect}
set state = 'unknown', error_type = 'TimeoutError', error = :error, asked = 0,
    due_at = cast((julianday('now') - 2440587.5) * 86400000 as integer),
    expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where effect_id = :effect_id and epoch = :epoch
returning 1;

-- name: performing.release
update {effect} set holder = null, epoch = epoch + 1, expires_at = 0
where effect_id = :effect_id and epoch = :epoch
returning 1;

-- name: performing.finish
update {effect}
set state = :state, result = :result, error_type = :error_type, error = :error, asked = :asked, holder = null,
    epoch = epoch + 1, expires_at = 0,
    due_at = cast((julianday('now') - 2440587.5) * 86400000 + :delay_s * 1000 as integer),
    finished_at = case when :state in ('done', 'failed')
                       then cast((julianday('now') - 2440587.5) * 86400000 as integer) end
where effect_id = :effect_id and (epoch = :epoch or (:state = 'done' and state = 'unknown'))
returning 1;

-- name: effects.list
select effect_id, name, key, state, attempts, asked,
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - created_at) / 1000.0,
       (due_at - cast((julianday('now') - 2440587.5) * 86400000 as integer)) / 1000.0,
       event_id, consumer, error_type, error
from {effect}
where (:name is null or name = :name) and (:state is null or state = :state) and (:key is null or key = :key)
order by effect_id desc limit :limit;

-- name: effects.show
select effect_id, name, key, state, attempts, asked,
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - created_at) / 1000.0,
       (due_at - cast((julianday('now') - 2440587.5) * 86400000 as integer)) / 1000.0,
       event_id, consumer, error_type, error, idempotency_key, data, result, created_at, sent_at, finished_at
from {effect} where effect_id = :effect_id;

-- name: effects.resolve
update {effect}
set state = :state, error_type = 'Resolved', error = :why, holder = null, epoch = epoch + 1, expires_at = 0, asked = 0,
    due_at = cast((julianday('now') - 2440587.5) * 86400000 as integer),
    finished_at = case when :state = 'done' then cast((julianday('now') - 2440587.5) * 86400000 as integer) end
where effect_id = :effect_id
  and (state in ('unknown', 'failed')
       or state = 'sent' and expires_at < cast((julianday('now') - 2440587.5) * 86400000 as integer))
returning name, key;

-- name: effects.counts
select name, state, count(*), (cast((julianday('now') - 2440587.5) * 86400000 as integer) - min(created_at)) / 1000.0
from {effect} where state <> 'done' group by name, state order by name, state;

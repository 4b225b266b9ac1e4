-- The inbox: what each consumer has processed. Written in the handler's own transaction.

-- name: inbox.insert
-- Waits for a twin that is under way; no row comes back when the message is already there. Never aborts the transaction.
insert into {inbox} (consumer, event_id, generation, outcome)
values (cast(:consumer as text), cast(cast(:event_id as text) as uuid), cast(:generation as integer), cast(:outcome as text))
on conflict (consumer, event_id, generation) do nothing
returning cast(pg_current_xact_id() as text);

-- name: inbox.insert_soon
-- As `inbox.insert`, in a handler's transaction: it waits for no lock longer than `lock_ms` (SQLSTATE 55P03 then), and
-- the handler's own statements wait as long as its session is set. The server ends the session if it is idle in this
-- transaction for `idle_ms`, unless it is set to do so anyway; 0: never. All without a round trip of its own.
insert into {inbox} (consumer, event_id, generation, outcome)
select cast(:consumer as text), cast(:event_id as uuid), cast(:generation as integer), 'done'
from (select set_config('relevo.lock_timeout', coalesce(nullif(current_setting('relevo.lock_timeout', true), ''),
                                                        current_setting('lock_timeout')), true),
             set_config('lock_timeout', cast(:lock_ms as text), true),
             set_config('idle_in_transaction_session_timeout',
                        case current_setting('idle_in_transaction_session_timeout') when '0' then cast(:idle_ms as text)
                        else current_setting('idle_in_transaction_session_timeout') end, true)) as bound
on conflict (consumer, event_id, generation) do nothing
returning cast(pg_current_xact_id() as text), set_config('lock_timeout', current_setting('relevo.lock_timeout'), true);

-- name: inbox.insert_live
-- `held.lock_key_soon` and `inbox.insert_soon` in one: no row either where the key is held. Its row is locked then.
with bound as materialized (
  select set_config('relevo.lock_timeout', coalesce(nullif(current_setting('relevo.lock_timeout', true), ''),
                                                    current_setting('lock_timeout')), true),
         set_config('lock_timeout', cast(:lock_ms as text), true) as lock_ms,
         set_config('idle_in_transaction_session_timeout',
                    case current_setting('idle_in_transaction_session_timeout') when '0' then cast(:idle_ms as text)
                    else current_setting('idle_in_transaction_session_timeout') end, true)
)
insert into {inbox} (consumer, event_id, generation, outcome)
select cast(:consumer as text), cast(:event_id as uuid), 0, 'done' from bound
where not exists (
  select from {held_key}
  where (select lock_ms from bound) is not null
    and side = cast(:side as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
    and key = cast(:key as bytea)
  for update
)
on conflict (consumer, event_id, generation) do nothing
returning cast(pg_current_xact_id() as text), set_config('lock_timeout', current_setting('relevo.lock_timeout'), true);

-- name: inbox.find
select outcome from {inbox}
where consumer = cast(:consumer as text) and event_id = cast(cast(:event_id as text) as uuid)
  and generation = cast(:generation as integer);

-- name: inbox.bound_idle
select set_config('idle_in_transaction_session_timeout', cast(:idle_ms as text), true);

-- name: inbox.identity
-- One value per installation: tells whether two connections see the same inbox.
select cast(extract(epoch from created_at) * 1000000 as bigint) from {meta};

-- name: inbox.read_only
-- Whether nothing can be written now: a standby, or set so.
select current_setting('transaction_read_only') = 'on';

-- name: inbox.together
-- What a batch begins with. It waits for no lock longer than `lock_ms`, and is told how long the application has its
-- statements wait (0: it did not say; then `lock_ms` holds for the handlers, too), whether the consumer holds any key at
-- all, and learns its own name. `idle_ms` as in `inbox.insert_soon`. The part that locks no row leaves the mark that
-- `held.lock_key` leaves, a ROW SHARE lock on the table to the transaction's end: a replay that holds a key waits for
-- every transaction that may have found it live.
select current_setting('lock_timeout'), set_config('lock_timeout', cast(:lock_ms as text), true),
       exists (select from {held_key} where side = 'consumer' and consumer = cast(:consumer as text)),
       cast(pg_current_xact_id() as text),
       set_config('idle_in_transaction_session_timeout',
                  case current_setting('idle_in_transaction_session_timeout') when '0' then cast(:idle_ms as text)
                  else current_setting('idle_in_transaction_session_timeout') end, true),
       exists (select from {held_key} where false for key share);

-- name: inbox.lock_timeout
select set_config('lock_timeout', cast(:value as text), true);

-- name: inbox.insert_many
-- In one order, so that two batches with the same messages wait for each other and do not deadlock.
insert into {inbox} (consumer, event_id, generation, outcome)
select cast(:consumer as text), id, 0, 'done' from unnest(cast(cast(:event_ids as text) as uuid[])) as id order by id
on conflict (consumer, event_id, generation) do nothing
returning cast(event_id as text);

-- name: inbox.find_many
select cast(event_id as text) from {inbox}
where consumer = cast(:consumer as text) and event_id = any (cast(cast(:event_ids as text) as uuid[])) and generation = 0;

-- name: inbox.take_back
delete from {inbox}
where consumer = cast(:consumer as text) and event_id = any (cast(cast(:event_ids as text) as uuid[])) and generation = 0;

-- name: inbox.undo
-- A row's xmin is the name of its transaction without the epoch. Rows of a replay's generation too.
delete from {inbox}
where consumer = cast(:consumer as text) and event_id = any (cast(cast(:event_ids as text) as uuid[]))
  and cast(cast(xmin as text) as bigint) = cast(:xid as bigint) % 4294967296
returning 1;

-- name: inbox.idle_since
-- Since when the server waits for its client in a transaction, or that the transaction is over. No row while it works on
-- a statement. It is `active` and reads from the client between the messages of the extended protocol, as after a Parse
-- of asyncpg's. `backend_xid` is the number without the epoch.
select coalesce(cast(activity.state_change as text), 'over')
from (select cast(:xid as text) as xid) as asked
     left join pg_stat_activity as activity
     on cast(cast(activity.backend_xid as text) as bigint) = cast(asked.xid as bigint) % 4294967296
where activity.state like 'idle%' or activity.wait_event = 'ClientRead'
   or pg_xact_status(cast(asked.xid as xid8)) in ('committed', 'aborted');

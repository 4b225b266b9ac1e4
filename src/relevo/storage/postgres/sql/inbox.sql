-- The inbox: what each consumer has processed. Written in the handler's own transaction.

-- name: inbox.insert
-- Waits for a twin that is under way; no row comes back when the message is already there. Never aborts the transaction.
insert into {inbox} (consumer, event_id, generation, outcome)
values (cast(:consumer as text), cast(:event_id as uuid), cast(:generation as integer), cast(:outcome as text))
on conflict (consumer, event_id, generation) do nothing
returning cast(pg_current_xact_id() as text);

-- name: inbox.find
select outcome from {inbox}
where consumer = cast(:consumer as text) and event_id = cast(:event_id as uuid)
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
-- What a batch begins with. It waits for no lock longer than `lock_ms` (unless the application said how long), is told
-- whether the consumer holds any key at all, and learns its own name. The part that locks no row leaves the mark that
-- `held.lock_key` leaves, a ROW SHARE lock on the table to the transaction's end: a replay that holds a key waits for
-- every transaction that may have found it live.
select set_config('lock_timeout', case current_setting('lock_timeout') when '0' then cast(:lock_ms as text)
                                  else current_setting('lock_timeout') end, true),
       exists (select from {held_key} where side = 'consumer' and consumer = cast(:consumer as text)),
       cast(pg_current_xact_id() as text), exists (select from {held_key} where false for key share);

-- name: inbox.insert_many
-- In one order, so that two batches with the same messages wait for each other and do not deadlock.
insert into {inbox} (consumer, event_id, generation, outcome)
select cast(:consumer as text), id, 0, 'done' from unnest(cast(:event_ids as uuid[])) as id order by id
on conflict (consumer, event_id, generation) do nothing
returning cast(event_id as text);

-- name: inbox.find_many
select cast(event_id as text) from {inbox}
where consumer = cast(:consumer as text) and event_id = any (cast(:event_ids as uuid[])) and generation = 0;

-- name: inbox.take_back
delete from {inbox}
where consumer = cast(:consumer as text) and event_id = any (cast(:event_ids as uuid[])) and generation = 0;

-- name: inbox.undo
-- A row's xmin is the name of its transaction without the epoch. Rows of a replay's generation too.
delete from {inbox}
where consumer = cast(:consumer as text) and event_id = any (cast(:event_ids as uuid[]))
  and cast(cast(xmin as text) as bigint) = cast(:xid as bigint) % 4294967296
returning 1;

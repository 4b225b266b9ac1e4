-- The inbox: what each consumer has processed. Written in the handler's own transaction.

-- name: inbox.insert
-- Waits for a twin that is under way; no row comes back when the message is already there. Never aborts the transaction.
insert into {inbox} (consumer, event_id, generation, outcome)
values (cast(:consumer as text), cast(:event_id as uuid), cast(:generation as integer), cast(:outcome as text))
on conflict (consumer, event_id, generation) do nothing
returning 1;

-- name: inbox.find
select outcome from {inbox}
where consumer = cast(:consumer as text) and event_id = cast(:event_id as uuid)
  and generation = cast(:generation as integer);

-- name: inbox.bound_idle
select set_config('idle_in_transaction_session_timeout', cast(:idle_ms as text), true);

-- name: inbox.identity
-- One value per installation: tells whether two connections see the same inbox.
select cast(extract(epoch from created_at) * 1000000 as bigint) from {meta};

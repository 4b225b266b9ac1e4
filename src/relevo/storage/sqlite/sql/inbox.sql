-- The inbox: what each consumer has processed. Written in the handler's own transaction.

-- name: inbox.insert
insert into {inbox} (consumer, event_id, generation, outcome)
values (:consumer, :event_id, :generation, :outcome)
on conflict (consumer, event_id, generation) do nothing
returning 1;

-- name: inbox.insert_soon
-- There is one writer at a time, and this is it: there is no lock to wait for.
insert into {inbox} (consumer, event_id, generation, outcome)
values (:consumer, :event_id, :generation, 'done')
on conflict (consumer, event_id, generation) do nothing
returning 1;

-- name: inbox.insert_live
-- No row either where the key is held.
insert into {inbox} (consumer, event_id, generation, outcome)
select :consumer, :event_id, 0, 'done'
where not exists (
  select 1 from {held_key} where side = :side and consumer = :consumer and topic = :topic and key = :key
)
on conflict (consumer, event_id, generation) do nothing
returning 1;

-- name: inbox.find
select outcome from {inbox}
where consumer = :consumer and event_id = :event_id and generation = :generation;

-- name: inbox.identity
select created_at from {meta};

-- name: inbox.read_only
-- Whether nothing can be written now: a standby, or set so.
select 0;

-- name: inbox.together
select '0', null, exists (select 1 from {held_key} where side = 'consumer' and consumer = :consumer), null, null, 0;

-- name: inbox.insert_many
insert into {inbox} (consumer, event_id, generation, outcome)
select :consumer, value, 0, 'done' from json_each(:event_ids) where true
on conflict (consumer, event_id, generation) do nothing
returning event_id;

-- name: inbox.find_many
select event_id from {inbox}
where consumer = :consumer and event_id in (select value from json_each(:event_ids)) and generation = 0;

-- name: inbox.take_back
delete from {inbox}
where consumer = :consumer and event_id in (select value from json_each(:event_ids)) and generation = 0;

-- name: inbox.undo
-- As inbox.take_back, where a handler committed them; the number of rows tells whether it did.
delete from {inbox}
where consumer = :consumer and event_id in (select value from json_each(:event_ids)) and generation = 0
returning 1;

-- The inbox: what each consumer has processed. Written in the handler's own transaction.

-- name: inbox.insert
insert into {inbox} (consumer, event_id, generation, outcome)
values (:consumer, :event_id, :generation, :outcome)
on conflict (consumer, event_id, generation) do nothing
returning 1;

-- name: inbox.find
select outcome from {inbox}
where consumer = :consumer and event_id = :event_id and generation = :generation;

-- name: inbox.purge
delete from {inbox} where (consumer, event_id, generation) in (
  select i.consumer, i.event_id, i.generation from {inbox} i
  where i.processed_at < cast((julianday('now') - 2440587.5) * 86400000 as integer) - :window_s * 1000
    and not exists (select 1 from {held_message} m
                    where m.side = 'consumer' and m.consumer = i.consumer and m.event_id = i.event_id)
  limit :limit)
returning 1;

-- name: inbox.identity
select created_at from {meta};

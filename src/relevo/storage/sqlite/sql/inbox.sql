-- The inbox: what each consumer has processed. Written in the handler's own transaction.

-- name: inbox.insert
insert into {inbox} (consumer, event_id, generation, outcome)
values (:consumer, :event_id, :generation, :outcome)
on conflict (consumer, event_id, generation) do nothing
returning 1;

-- name: inbox.find
select outcome from {inbox}
where consumer = :consumer and event_id = :event_id and generation = :generation;

-- name: inbox.identity
select created_at from {meta};

-- Dead letters on their way to the broker.

-- name: letters.add
insert into {dead_letter} (consumer, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
  aggregate_version, payload, content_type, headers, created_at)
values (:consumer, :event_id, :kind, :topic, :key, :type, :schema_version, :aggregate_type, :aggregate_id,
  :aggregate_version, :payload, :content_type, :headers, :created_us / 1000);

-- name: letters.page
-- What is due, the oldest first. What the broker refused waits aside, so that it keeps nothing else back.
select letter_id, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers, created_at, refusals
from {dead_letter}
where consumer = :consumer and due_at <= cast((julianday('now') - 2440587.5) * 86400000 as integer)
  and topic not in (select value from json_each(:without_topics))
order by letter_id limit :limit;

-- name: letters.sent
delete from {dead_letter} where letter_id in (select value from json_each(:ids));

-- name: letters.refused
update {dead_letter}
set refusals = refusals + 1, problem = :problem,
    due_at = cast((julianday('now') - 2440587.5) * 86400000 + :delay_s * 1000 as integer)
where letter_id = :letter_id;

-- name: letters.waiting
select count(*), count(case when refusals > 0 then 1 end) from {dead_letter} where consumer = :consumer;

-- name: letters.by_consumer
select consumer, count(*), count(case when refusals > 0 then 1 end),
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - min(given_up_at)) / 1000.0, max(problem)
from {dead_letter} group by consumer order by consumer;

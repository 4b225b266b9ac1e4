-- Dead letters on their way to the broker.

-- name: letters.add
insert into {dead_letter} (consumer, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
  aggregate_version, payload, content_type, headers, created_at)
values (cast(:consumer as text), cast(:event_id as uuid), cast(:kind as text), cast(:topic as text),
  cast(:key as bytea), cast(:type as text), cast(:schema_version as integer), cast(:aggregate_type as text),
  cast(:aggregate_id as text), cast(:aggregate_version as bigint), cast(:payload as bytea),
  cast(:content_type as text), cast(:headers as jsonb),
  timestamptz 'epoch' + cast(:created_us as bigint) * interval '1 microsecond');

-- name: letters.page
-- What is due, the oldest first. What the broker refused waits aside, so that it keeps nothing else back.
select letter_id, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers::text, created_at, refusals
from {dead_letter}
where consumer = cast(:consumer as text) and due_at <= clock_timestamp()
  and topic <> all(cast(:without_topics as text[]))
order by letter_id limit cast(:limit as integer);

-- name: letters.sent
delete from {dead_letter} where letter_id = any(cast(:ids as bigint[]));

-- name: letters.refused
update {dead_letter}
set refusals = refusals + 1, problem = cast(:problem as text),
    due_at = clock_timestamp() + make_interval(secs => cast(:delay_s as double precision))
where letter_id = cast(:letter_id as bigint);

-- name: letters.waiting
select count(*), count(*) filter (where refusals > 0) from {dead_letter} where consumer = cast(:consumer as text);

-- name: letters.by_consumer
select consumer, count(*), count(*) filter (where refusals > 0),
       cast(extract(epoch from clock_timestamp() - min(given_up_at)) as double precision), max(problem)
from {dead_letter} group by consumer order by consumer;

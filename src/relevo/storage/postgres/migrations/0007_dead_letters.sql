-- Dead letters on their way: copies of what consumers gave up, until the broker has confirmed them. The message itself
-- stays held; a letter is written in the transaction that holds it, and published afterwards by one process for all.

create table {dead_letter} (
  letter_id bigint generated always as identity primary key,
  consumer text not null,
  event_id uuid not null,
  kind text not null,
  topic text not null,                       -- where it goes: CONSUMER.TOPIC.dlq
  key bytea,
  type text not null,
  schema_version integer not null,
  aggregate_type text,
  aggregate_id text,
  aggregate_version bigint,
  payload bytea,
  content_type text not null,
  headers jsonb,                             -- the message's own, and the causes beside them
  created_at timestamptz not null,
  refusals integer not null default 0,       -- times the broker refused it
  problem text,                              -- what it said then
  due_at timestamptz not null default clock_timestamp(),
  given_up_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
create index {name:dead_letter_next} on {dead_letter} (consumer, letter_id);

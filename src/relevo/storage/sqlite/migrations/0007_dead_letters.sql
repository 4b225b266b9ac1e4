-- Dead letters on their way: copies of what consumers gave up, until the broker has confirmed them. The message itself
-- stays held; a letter is written in the transaction that holds it, and published afterwards by one process for all.

create table {dead_letter} (
  letter_id integer primary key autoincrement,
  consumer text not null,
  event_id text not null,
  kind text not null,
  topic text not null,                       -- where it goes: CONSUMER.TOPIC.dlq
  key blob,
  type text not null,
  schema_version integer not null,
  aggregate_type text,
  aggregate_id text,
  aggregate_version integer,
  payload blob,
  content_type text not null,
  headers text,                              -- the message's own, and the causes beside them
  created_at integer not null,
  refusals integer not null default 0,       -- times the broker refused it
  problem text,                              -- what it said then
  due_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  given_up_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);
create index {name:dead_letter_next} on {dead_letter} (consumer, letter_id);

-- What people pause, which duty is whose, what old messages become, and what purging must leave alone.

-- One row per pause. kind says which of the columns mean something: destination and topic (topic), consumer (consumer),
-- lane (lane), key (topic, key, and consumer unless it is '', the relay's side). name is what a person calls it.
create table {pause} (
  kind text not null check (kind in ('destination', 'topic', 'consumer', 'lane', 'key')),
  name text not null,
  topic text not null default '',
  consumer text not null default '',
  lane smallint,
  key bytea,
  who text not null,
  why text not null,
  since timestamptz not null default clock_timestamp(),
  primary key (kind, consumer, topic, name),
  check ((kind = 'lane') = (lane is not null)),
  check ((kind = 'key') = (key is not null))
);

-- Work that one process does for all: moving what is due, purging. Every change of owner raises the epoch.
create table {duty} (
  name text primary key,
  holder uuid,
  epoch bigint not null default 0,
  expires_at timestamptz not null default '-infinity',
  done_at timestamptz
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What jobs (a replay) still need of the outbox: nothing at or above from_seq, or from from_time on, is purged while the
-- row is there.
create table {keep} (
  name text primary key,
  from_seq bigint,
  from_time timestamptz,
  since timestamptz not null default clock_timestamp()
);

-- Settled messages that left the outbox, where retention says archive. Only ever inserted into, read by time or seq.
create table {archive} (
  seq bigint primary key,
  event_id uuid not null,
  bucket smallint not null,
  kind text not null,
  topic text not null,
  key bytea,
  type text not null,
  schema_version integer not null,
  aggregate_type text,
  aggregate_id text,
  aggregate_version bigint,
  payload bytea,
  content_type text not null,
  headers jsonb,
  created_at timestamptz not null,
  settled_at timestamptz not null,
  outcome text not null,
  archived_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_insert_scale_factor = 0.05);

create view {archive_readable} as
  select seq, event_id, kind, topic, {as_text}(key) as key, type, schema_version,
         coalesce(aggregate_type, topic) as aggregate_type, coalesce(aggregate_id, {as_text}(key)) as aggregate_id,
         aggregate_version, coalesce({as_text}(payload), encode(payload, 'base64')) as payload, content_type, headers,
         created_at, settled_at, outcome, archived_at, bucket
  from {archive};

-- What people pause, which duty is whose, what old messages become, and what purging must leave alone.

-- One row per pause. kind says which of the columns mean something: destination and topic (topic), consumer (consumer),
-- lane (lane), key (topic, key, and consumer unless it is '', the relay's side). name is what a person calls it.
create table {pause} (
  kind text not null check (kind in ('destination', 'topic', 'consumer', 'lane', 'key')),
  name text not null,
  topic text not null default '',
  consumer text not null default '',
  lane integer,
  key blob,
  who text not null,
  why text not null,
  since integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (kind, consumer, topic, name),
  check ((kind = 'lane') = (lane is not null)),
  check ((kind = 'key') = (key is not null))
);

-- Work that one process does for all: moving what is due, purging. Every change of owner raises the epoch.
create table {duty} (
  name text primary key,
  holder text,
  epoch integer not null default 0,
  expires_at integer not null default 0,
  done_at integer
);

-- What jobs (a replay) still need of the outbox: nothing at or above from_seq, or from from_time on, is purged while the
-- row is there.
create table {keep} (
  name text primary key,
  from_seq integer,
  from_time integer,
  since integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);

-- Settled messages that left the outbox, where retention says archive. Only ever inserted into, read by time or seq.
create table {archive} (
  seq integer primary key,
  event_id text not null,
  bucket integer,
  kind text not null,
  topic text not null,
  key blob,
  type text not null,
  schema_version integer not null,
  aggregate_type text,
  aggregate_id text,
  aggregate_version integer,
  payload blob,
  content_type text not null,
  headers text,
  created_at integer not null,
  settled_at integer not null,
  outcome text not null,
  archived_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);

create view {archive_readable} as
  select seq, event_id, kind, topic, cast(key as text) as key, type, schema_version,
         coalesce(aggregate_type, topic) as aggregate_type, coalesce(aggregate_id, cast(key as text)) as aggregate_id,
         aggregate_version, cast(payload as text) as payload, content_type, headers,
         strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') as created_at,
         strftime('%Y-%m-%d %H:%M:%f', settled_at / 1000.0, 'unixepoch') as settled_at, outcome,
         strftime('%Y-%m-%d %H:%M:%f', archived_at / 1000.0, 'unixepoch') as archived_at, bucket
  from {archive};

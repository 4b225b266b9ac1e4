-- Effects: outward acts (a charge, a mail, a webhook), recorded with the data and performed after the commit. And what a
-- replay needs beside its row in {job}.

create table {effect} (
  effect_id integer primary key autoincrement,
  name text not null,
  key text not null,
  idempotency_key text not null,
  data text not null default 'null' check (json_valid(data)),
  state text not null default 'pending' check (state in ('pending', 'sent', 'done', 'failed', 'unknown')),
  attempts integer not null default 0,
  asked integer not null default 0,
  due_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  holder text,
  epoch integer not null default 0,
  expires_at integer not null default 0,
  event_id text,
  consumer text,
  result text check (result is null or json_valid(result)),
  error_type text,
  error text,
  created_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  sent_at integer,
  finished_at integer,
  unique (name, key)
);
create index {name:effect_open} on {effect} (name, due_at) where state <> 'done';

-- A replay is a job; this says of which consumer, in which inbox generation, and which process works on it.
create table {replay} (
  job_id text primary key,
  consumer text not null default '',
  mode text not null check (mode in ('repair', 'again', 'into')),
  generation integer not null default 0,
  holder text,
  expires_at integer not null default 0
);
create unique index {name:replay_generation} on {replay} (consumer, generation) where generation > 0;

-- Messages a replay could not run. What comes later in their key is left out as well, so that the order holds.
create table {replay_failure} (
  job_id text not null,
  event_id text not null,
  topic text not null,
  key blob,
  error_type text,
  error text,
  at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (job_id, event_id)
);

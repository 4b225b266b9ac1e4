-- Effects: outward acts (a charge, a mail, a webhook), recorded with the data and performed after the commit. And what a
-- replay needs beside its row in {job}.

create table {effect} (
  effect_id bigint generated always as identity primary key,
  name text not null,
  key text not null,
  idempotency_key uuid not null,             -- of name and key: what the act's receiver can tell a repetition by
  data jsonb not null default 'null',
  state text not null default 'pending' check (state in ('pending', 'sent', 'done', 'failed', 'unknown')),
  attempts integer not null default 0,       -- acts begun
  asked integer not null default 0,          -- times `verify` was asked since it became unknown
  due_at timestamptz not null default clock_timestamp(),
  holder uuid,
  epoch bigint not null default 0,
  expires_at timestamptz not null default '-infinity',
  event_id uuid,                             -- the message whose handler recorded it
  consumer text,
  result jsonb,
  error_type text,
  error text,
  created_at timestamptz not null default clock_timestamp(),
  sent_at timestamptz,
  finished_at timestamptz,
  unique (name, key)
) with (fillfactor = 70);
create index {name:effect_open} on {effect} (name, due_at) where state <> 'done';

-- A replay is a job; this says of which consumer, in which inbox generation, and which process works on it.
create table {replay} (
  job_id uuid primary key,
  consumer text not null default '',         -- '' for a replay into a topic
  mode text not null check (mode in ('repair', 'again', 'into')),
  generation integer not null default 0,     -- of the inbox; 0 is the first processing
  holder uuid,
  expires_at timestamptz not null default '-infinity'
);
create unique index {name:replay_generation} on {replay} (consumer, generation) where generation > 0;

-- Messages a replay could not run. What comes later in their key is left out as well, so that the order holds.
create table {replay_failure} (
  job_id uuid not null,
  event_id uuid not null,
  topic text not null,
  key bytea,
  error_type text,
  error text,
  at timestamptz not null default clock_timestamp(),
  primary key (job_id, event_id)
);

-- Relevo's tables, first version. Serves the sources mark, log and wal, held keys, generations and scheduled messages.

create table {meta} (
  only_row boolean primary key default true check (only_row),
  schema_version integer not null,
  oldest_code integer not null,              -- the oldest schema version whose code may use these tables
  source text not null check (source in ('mark', 'log', 'wal')),
  lanes smallint not null check (lanes between 1 and 1024),
  system_id text,                            -- of the cluster these xids belong to
  timeline integer,
  created_at timestamptz not null default clock_timestamp()
);

-- Partitioned by seq from the start (docs/decisions/0001): one unbounded partition costs writers next to nothing, and
-- cutting it later needs no copy. seq is the only order; event_id is identity and never used for order.
-- tx stands before seq: defaults are evaluated in column order, so a transaction has its xid before it takes a seq.
-- The sources rely on it: once every xid below a later one has ended, no row below a seq seen before it can appear.
create table {outbox} (
  tx xid8 not null default pg_current_xact_id(),   -- top-level xid; never xmin
  seq bigint generated always as identity (cache 1),
  event_id uuid not null,
  bucket smallint not null check (bucket between 0 and 1023),
  kind text not null default 'event' check (kind in ('event', 'command')),
  topic text not null,
  key bytea,
  type text not null,
  schema_version integer not null default 1,
  aggregate_type text,
  aggregate_id text,
  aggregate_version bigint,
  payload bytea,
  content_type text not null default 'application/json',
  headers jsonb check (headers is null or jsonb_typeof(headers) = 'object'),
  created_at timestamptz not null default clock_timestamp()
    check (created_at >= '1970-01-01 00:00+00' and created_at < '9999-01-01 00:00+00'),   -- no infinity: clients cannot read it
  settled_at timestamptz,
  outcome text check (outcome in ('published', 'held', 'skipped')),
  primary key (seq)
) partition by range (seq);

create table {outbox_p0} partition of {outbox} for values from (minvalue) to (maxvalue)
  with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table {scheduled} (
  schedule_id bigint generated always as identity primary key,
  due_at timestamptz not null,
  event_id uuid not null unique,
  bucket smallint not null,
  kind text not null default 'event',
  topic text not null,
  key bytea,
  type text not null,
  schema_version integer not null default 1,
  aggregate_type text,
  aggregate_id text,
  aggregate_version bigint,
  payload bytea,
  content_type text not null default 'application/json',
  headers jsonb,
  created_at timestamptz not null default clock_timestamp()
);
create index {name:scheduled_due} on {scheduled} (due_at);

-- One row per lane: who owns it, until when by this database's clock. Every change of owner raises the epoch.
create table {lane} (
  lane smallint primary key,
  epoch bigint not null default 0,
  holder uuid,
  expires_at timestamptz not null default '-infinity'
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Where the log source stands, per lane and topic group. Never shared by lanes (HARD 3).
create table {cursor} (
  lane smallint not null,
  topic_group text not null default '*',
  snapshot text not null default '1:1:',
  high_water bigint not null default 0,
  window_snapshot text,
  window_position bigint,
  saved_at timestamptz not null default clock_timestamp(),
  primary key (lane, topic_group)
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Where the wal source stands: the truth that slot feedback follows.
create table {wal_position} (
  slot text primary key,
  system_id text not null,
  timeline integer not null,
  commit_lsn pg_lsn not null,
  ordinal bigint not null default 0,
  epoch bigint not null default 0,
  holder uuid,
  expires_at timestamptz not null default '-infinity'
) with (fillfactor = 40);

-- Who is running: relays share lanes by it, status and warnings read it.
create table {process} (
  process_id uuid primary key,
  role text not null check (role in ('relay', 'consumer')),
  name text not null,
  host text not null,
  pid integer not null,
  version text not null,
  topics text[] not null default '{}',
  detail jsonb not null default '{}',
  started_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Destinations a process takes nothing for, as it last said; counted while that process lives.
create table {destination} (
  topic text not null,
  process_id uuid not null,
  reason text not null,
  since timestamptz not null default clock_timestamp(),
  primary key (topic, process_id)
);

-- State of a key that is not live; a live key has no row. consumer is '' on the relay's side.
create table {held_key} (
  side text not null check (side in ('relay', 'consumer')),
  consumer text not null default '',
  topic text not null,
  key bytea not null,                        -- the message's key, or its event_id's bytes when it is held alone
  alone boolean not null default false,      -- one message without order, not a key's sequence
  bucket smallint not null,
  state text not null check (state in ('waiting', 'parked', 'draining')),
  reason text not null,
  error_type text,
  error text,
  attempts integer not null default 0,
  due_at timestamptz,
  epoch bigint not null default 0,           -- of the drain
  holder uuid,
  expires_at timestamptz not null default '-infinity',
  since timestamptz not null default clock_timestamp(),
  primary key (side, consumer, topic, key)
) with (fillfactor = 70);
create index {name:held_key_due} on {held_key} (due_at) where state <> 'parked';

-- Its queue: complete copies, in source order.
create table {held_message} (
  held_seq bigint generated always as identity primary key,
  side text not null,
  consumer text not null default '',
  topic text not null,
  held_key bytea not null,
  event_id uuid not null,
  position bigint not null,                  -- seq on the relay's side, the shard's position on the consumer's
  shard text not null default '',
  bucket smallint not null,
  kind text not null,
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
  held_at timestamptz not null default clock_timestamp(),
  unique (side, consumer, topic, held_key, event_id)
);
create index {name:held_message_order} on {held_message} (side, consumer, topic, held_key, position, held_seq);

create table {inbox} (
  consumer text not null,
  event_id uuid not null,
  generation integer not null default 0,
  outcome text not null default 'done' check (outcome in ('done', 'skipped', 'discarded')),
  processed_at timestamptz not null default clock_timestamp(),
  primary key (consumer, event_id, generation)
) with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.02);

-- What a consumer process took and did not settle yet: whoever finds a row of another owner takes its message alone.
create table {journal} (
  consumer text not null,
  event_id uuid not null,
  owner uuid not null,
  attempts integer not null default 0,
  taken_at timestamptz not null default clock_timestamp(),
  primary key (consumer, event_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create index {name:journal_owner} on {journal} (owner);

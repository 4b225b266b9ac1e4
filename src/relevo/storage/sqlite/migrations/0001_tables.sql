-- Relevo's tables on SQLite. Times are integer milliseconds since 1970 UTC, by this machine's clock; arrays and headers
-- are JSON text; event ids are lower-case text. One writer at a time, so seq order is commit order.

create table {meta} (
  only_row integer primary key default 1 check (only_row = 1),
  schema_version integer not null,
  oldest_code integer not null,
  source text not null check (source in ('mark', 'log')),
  lanes integer not null check (lanes between 1 and 1024),
  system_id text,
  timeline integer,
  created_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);

create table {outbox} (
  seq integer primary key autoincrement,
  event_id text not null,
  bucket integer check (bucket between 0 and 1023),     -- null: appended through the view; the relay fills it in
  kind text not null default 'event' check (kind in ('event', 'command')),
  topic text not null,
  key blob check (typeof(key) in ('blob', 'null')),
  type text not null,
  schema_version integer not null default 1,
  aggregate_type text,
  aggregate_id text,
  aggregate_version integer,
  payload blob check (typeof(payload) in ('blob', 'null')),
  content_type text not null default 'application/json',
  headers text check (headers is null or (json_valid(headers) and json_type(headers) = 'object')),
  created_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
    check (typeof(created_at) = 'integer'),
  settled_at integer,
  outcome text check (outcome in ('published', 'held', 'skipped'))
);

create table {scheduled} (
  schedule_id integer primary key autoincrement,
  due_at integer not null,
  event_id text not null unique,
  bucket integer not null,
  kind text not null default 'event',
  topic text not null,
  key blob,
  type text not null,
  schema_version integer not null default 1,
  aggregate_type text,
  aggregate_id text,
  aggregate_version integer,
  payload blob,
  content_type text not null default 'application/json',
  headers text,
  created_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);
create index {name:scheduled_due} on {scheduled} (due_at);

create table {lane} (
  lane integer primary key,
  epoch integer not null default 0,
  holder text,
  expires_at integer not null default 0
);

create table {cursor} (
  lane integer not null,
  topic_group text not null default '*',
  high_water integer not null default 0,
  saved_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (lane, topic_group)
);

create table {process} (
  process_id text primary key,
  role text not null check (role in ('relay', 'consumer')),
  name text not null,
  host text not null,
  pid integer not null,
  version text not null,
  topics text not null default '[]',
  detail text not null default '{}',
  started_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  expires_at integer not null
);

-- Destinations a process takes nothing for, as it last said; counted while that process lives.
create table {destination} (
  topic text not null,
  process_id text not null,
  reason text not null,
  since integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (topic, process_id)
);

create table {held_key} (
  side text not null check (side in ('relay', 'consumer')),
  consumer text not null default '',
  topic text not null,
  key blob not null,
  alone integer not null default 0,
  bucket integer not null,
  state text not null check (state in ('waiting', 'parked', 'draining')),
  reason text not null,
  error_type text,
  error text,
  attempts integer not null default 0,
  due_at integer,
  epoch integer not null default 0,
  holder text,
  expires_at integer not null default 0,
  since integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (side, consumer, topic, key)
);
create index {name:held_key_due} on {held_key} (due_at) where state <> 'parked';

create table {held_message} (
  held_seq integer primary key autoincrement,
  side text not null,
  consumer text not null default '',
  topic text not null,
  held_key blob not null,
  event_id text not null,
  position integer not null,
  shard text not null default '',
  bucket integer not null,
  kind text not null,
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
  held_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  unique (side, consumer, topic, held_key, event_id)
);
create index {name:held_message_order} on {held_message} (side, consumer, topic, held_key, position, held_seq);

create table {inbox} (
  consumer text not null,
  event_id text not null,
  generation integer not null default 0,
  outcome text not null default 'done' check (outcome in ('done', 'skipped', 'discarded')),
  processed_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (consumer, event_id, generation)
) without rowid;

create table {journal} (
  consumer text not null,
  event_id text not null,
  owner text not null,
  attempts integer not null default 0,
  taken_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  primary key (consumer, event_id)
) without rowid;
create index {name:journal_owner} on {journal} (owner);

-- What people do to messages: every act is recorded, long ones are jobs that can be taken up again.

-- Who did what, when, why and to how many. Written in the transaction of the act itself; never changed.
create table {audit} (
  audit_id integer primary key autoincrement,
  at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  actor text not null,
  action text not null,
  reason text not null default '',
  filter text not null default '{}' check (json_valid(filter)),
  count integer not null default 0,
  job_id text,
  detail text not null default '{}' check (json_valid(detail))
);
create index {name:audit_at} on {audit} (at);

-- Long acts of an operator, step by step. A step moves cursor and done in its own transaction, so that a job that was
-- killed goes on where it stood.
create table {job} (
  job_id text primary key,
  kind text not null,
  state text not null default 'running' check (state in ('running', 'paused', 'done', 'cancelled', 'failed')),
  filter text not null default '{}' check (json_valid(filter)),
  rate real,
  total integer,
  done integer not null default 0,
  cursor text not null default '{}' check (json_valid(cursor)),
  actor text not null,
  reason text not null default '',
  detail text not null default '{}' check (json_valid(detail)),
  started_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
  updated_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);

alter table {held_message} add column edited_from text;   -- the message an operator replaced by this one
create index {name:held_message_event} on {held_message} (event_id);

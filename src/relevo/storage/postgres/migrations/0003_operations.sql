-- What people do to messages: every act is recorded, long ones are jobs that can be taken up again.

-- Who did what, when, why and to how many. Written in the transaction of the act itself; never changed.
create table {audit} (
  audit_id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  actor text not null,                       -- who: as given, else user@host
  action text not null,                      -- 'parked.redrive', 'destination.pause', ...
  reason text not null default '',           -- why, in the operator's words
  filter jsonb not null default '{}',        -- what was selected
  count bigint not null default 0,           -- messages this act touched
  job_id uuid,                               -- the job it is a step of
  detail jsonb not null default '{}'
);
create index {name:audit_at} on {audit} (at);

-- Long acts of an operator, step by step. A step moves cursor and done in its own transaction, so that a job that was
-- killed goes on where it stood.
create table {job} (
  job_id uuid primary key,
  kind text not null,                        -- 'parked.redrive', 'replay', ...
  state text not null default 'running' check (state in ('running', 'paused', 'done', 'cancelled', 'failed')),
  filter jsonb not null default '{}',
  rate double precision,                     -- units a second; null: as fast as it goes
  total bigint,                              -- as counted at the start; null: not counted
  done bigint not null default 0,
  cursor jsonb not null default '{}',        -- how far it got, as its kind understands it
  actor text not null,
  reason text not null default '',
  detail jsonb not null default '{}',
  started_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
) with (fillfactor = 70);

alter table {held_message} add column edited_from uuid;   -- the message an operator replaced by this one
create index {name:held_message_event} on {held_message} (event_id);

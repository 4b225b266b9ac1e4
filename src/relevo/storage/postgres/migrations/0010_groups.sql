-- Consumers that read the outbox themselves, with no broker between (docs/decisions/0012).

-- A group is a consumer by its name. It keeps what it has not read: retention waits for the slowest (`relevo groups`).
create table {group} (
  group_name text primary key,
  created_at timestamptz not null default clock_timestamp(),
  topics text[] not null default '{}'        -- of the member that joined last
);

-- Its processes, as they last said. They share the lanes.
create table {group_member} (
  group_name text not null references {group} on delete cascade,
  member uuid not null,
  topics text[] not null,
  host text not null,
  pid integer not null,
  joined_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  primary key (group_name, member)
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Who reads a lane for a group, until when, and how far it was settled: lease and cursor in one row, so that one lock
-- guards both.
create table {group_lane} (
  group_name text not null references {group} on delete cascade,
  lane smallint not null,
  epoch bigint not null default 0,
  holder uuid,
  expires_at timestamptz not null default '-infinity',
  snapshot text not null default '1:1:',
  high_water bigint not null default 0,
  window_snapshot text,
  window_position bigint,
  saved_at timestamptz not null default clock_timestamp(),
  primary key (group_name, lane)
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Topics that were made by name. Asked only where broker.options.auto_create is off.
create table {topic} (
  topic text primary key,
  created_at timestamptz not null default clock_timestamp()
);

-- As in 0008, but that every group must have passed a row as well, whatever marker it has.
create or replace function {drop_outbox_partition}(which text, newest timestamptz, lock_ms integer) returns text
language plpgsql security definer set search_path from current as $$
declare
  old record;
  passed record;
  read record;
  found_one boolean;
begin
  perform set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true);
  perform set_config('lock_timeout', lock_ms::text, true);
  select * into old from (select *, row_number() over (order by from_seq desc) as place from {outbox_partitions}()) as p
  where name = which;
  if not found then
    return 'gone';
  elsif old.place <= 2 then
    return 'open';
  end if;
  begin
    lock table {keep} in share mode;   -- a replay that is just beginning is waited for, and then seen
    lock table only {outbox} in access exclusive mode;
    execute format('lock table only %s in access exclusive mode nowait', old.partition);
  exception when lock_not_available then
    return 'locked';
  end;
  perform set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  into passed from {cursor} where (select source from {meta}) in ('log', 'wal');
  if passed.seq is null then
    execute format('select exists (select from only %s where settled_at is null)', old.partition) into found_one;
  else
    execute format('select exists (select from only %1$s where seq > %2$s and settled_at is null) or '
                   'exists (select from only %1$s where tx >= ''%3$s'' and settled_at is null)',
                   old.partition, passed.seq, passed.xid) into found_one;
  end if;
  if found_one then
    return 'unsettled';
  end if;
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  into read from {group_lane};
  if read.seq is not null then
    execute format('select exists (select from only %1$s where seq > %2$s) or '
                   'exists (select from only %1$s where tx >= ''%3$s'')', old.partition, read.seq, read.xid)
    into found_one;
    if found_one then
      return 'unread';
    end if;
  end if;
  if exists (select from {held_message} where side = 'relay' and position >= old.from_seq and position < old.to_seq) then
    return 'held';
  end if;
  if exists (select from {keep} where from_seq < old.to_seq or from_time <= newest) then
    return 'kept';
  end if;
  execute format('drop table %s', old.partition);
  return 'dropped';
end
$$;

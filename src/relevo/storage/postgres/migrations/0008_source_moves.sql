-- Moving between the sources, and retention by partitions where rows were passed without a marker.

alter table {meta}
  add column moved_from text check (moved_from in ('mark', 'log', 'wal')),  -- what settings may still say after a move
  add column moving_until timestamptz;                                     -- until then nobody may acquire lanes

-- As in 0006, but that a row which no marker settles may be one that every cursor has passed, by number and transaction. Both
-- are looked for from the far end of an index, so that nothing is scanned while writers are locked out.
create or replace function {drop_outbox_partition}(which text, newest timestamptz, lock_ms integer) returns text
language plpgsql security definer set search_path from current as $$
declare
  old record;
  passed record;
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
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  into passed from {cursor} where (select source from {meta}) in ('log', 'wal');
  if passed.seq is null then
    execute format('select exists (select from only %s where settled_at is null)', old.partition) into found_one;
  else
    perform set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
    execute format('select exists (select from only %1$s where seq > %2$s and settled_at is null) or '
                   'exists (select from only %1$s where tx >= ''%3$s'' and settled_at is null)',
                   old.partition, passed.seq, passed.xid) into found_one;
  end if;
  if found_one then
    return 'unsettled';
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

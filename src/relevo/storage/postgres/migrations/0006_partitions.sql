-- Retention by partitions: the outbox's tail is cut, and what is over is dropped whole (docs/decisions/0007). The functions
-- do as the tables' owner what `keeper` may ask for; each checks again, under its locks, whatever can have changed.
-- They wait for a lock at most lock_ms, and while they wait so do writers: keep it short.

-- The partitions, in order. The last one has no end.
create function {outbox_partitions}()
returns table (partition regclass, name text, from_seq bigint, to_seq bigint)
language sql stable as $$
  select c.oid::regclass, c.relname::text,
         case b[1] when 'MINVALUE' then (-9223372036854775808)::bigint else b[1]::bigint end,
         case b[2] when 'MAXVALUE' then 9223372036854775807 else b[2]::bigint end
  from pg_catalog.pg_inherits i
  join pg_catalog.pg_class c on c.oid = i.inhrelid
  cross join lateral regexp_match(pg_get_expr(c.relpartbound, c.oid),
                                  'FROM \(''?([A-Z0-9-]+)''?\) TO \(''?([A-Z0-9-]+)''?\)') as b
  where i.inhparent = '{outbox}'::regclass
  order by 3
$$;

-- One step of a cut: 'promised' (now prove it), 'cut', 'empty' (nothing to cut) or 'locked' (nothing was changed).
-- An empty tail, where every cut but the first finds one, is replaced by two: one that has room for so many numbers, and a
-- new tail behind it. A tail with rows needs a promise that was proved, so that nothing is scanned under the lock.
create function {cut_outbox}(lock_ms integer, room bigint) returns text
language plpgsql security definer set search_path from current as $$
declare
  tail record;
  promise record;
  first_seq bigint;
  bound bigint;
  made text;
  serial integer;
  tail_acl aclitem[];
  tail_options text;
  acl record;
begin
  perform set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true);
  perform set_config('lock_timeout', lock_ms::text, true);
  select * into strict tail from {outbox_partitions}() order by from_seq desc limit 1;
  select conname, convalidated, substring(pg_get_constraintdef(oid) from 'seq < ''?(\d+)')::bigint as bound into promise
  from pg_catalog.pg_constraint where conrelid = tail.partition and conname = tail.name || '_bound';
  if promise.conname is not null and not promise.convalidated then
    return 'promised';
  end if;
  if promise.conname is null then
    execute format('select seq from only %s order by seq limit 1', tail.partition) into first_seq;
    if first_seq is null and tail.from_seq < 0 then
      return 'empty';
    end if;
  end if;
  begin
    lock table only {outbox} in access exclusive mode;
    execute format('lock table only %s in access exclusive mode nowait', tail.partition);
  exception when lock_not_available then
    return 'locked';
  end;
  if promise.conname is null and first_seq is null then
    execute format('select seq from only %s order by seq limit 1', tail.partition) into first_seq;
  end if;
  if promise.conname is null and first_seq is not null then
    -- Writers are held to it from here on; the room is so wide that they do not come near, also if nobody goes on.
    bound := pg_sequence_last_value(pg_get_serial_sequence('{outbox}', 'seq')::regclass) + room;
    execute format('alter table %s add constraint %I check (%s seq < %s) not valid', tail.partition,
                   tail.name || '_bound', case when tail.from_seq > 0 then format('seq >= %s and', tail.from_seq) end,
                   bound);
    return 'promised';
  end if;

  select c.relacl, 'with (' || string_agg(format('%s = %L', split_part(o, '=', 1), substr(o, strpos(o, '=') + 1)), ', ')
                   || ')'
  into tail_acl, tail_options
  from pg_catalog.pg_class c left join lateral unnest(c.reloptions) as o on true
  where c.oid = tail.partition group by c.oid, c.relacl;
  select max(substring(name from '_p(\d+)$')::integer) into serial from {outbox_partitions}();
  if promise.conname is not null then
    bound := promise.bound;
    execute format('alter table {outbox} detach partition %s', tail.partition);
    execute format('alter table {outbox} attach partition %s for values from (%s) to (%s)', tail.partition,
                   case when tail.from_seq > 0 then tail.from_seq::text else 'minvalue' end, bound);
    execute format('alter table %s drop constraint %I', tail.partition, promise.conname);
  else
    bound := tail.from_seq;
    execute format('drop table %s', tail.partition);
  end if;
  for step in 1..2 loop
    made := (select format('%I.%I', n.nspname, '{prefix}outbox_p' || (serial + step))
             from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where c.oid = '{outbox}'::regclass);
    execute format('create table %s partition of {outbox} for values from (%s) to (%s) %s', made,
                   bound + (step - 1) * room, case step when 1 then (bound + room)::text else 'maxvalue' end,
                   tail_options);
    for acl in select distinct privilege_type, grantee, is_grantable from aclexplode(tail_acl)
               where grantee <> (select relowner from pg_catalog.pg_class where oid = made::regclass) loop
      execute format('grant %s on %s to %s %s', acl.privilege_type, made,
                     case acl.grantee when 0 then 'public' else acl.grantee::regrole::text end,
                     case when acl.is_grantable then 'with grant option' end);
    end loop;
  end loop;
  -- Nobody is inside: whoever had written to the outbox has ended, and the next number is the first of the new partition.
  execute format('alter table {outbox} alter column seq restart with %s', bound);
  return 'cut';
end
$$;

-- Proves the promise of a cut for the rows that are there, under a lock that lets everybody work. 'proved', 'locked', or
-- 'none' without a promise.
create function {prove_outbox_cut}(lock_ms integer) returns text
language plpgsql security definer set search_path from current as $$
declare
  tail record;
begin
  perform set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true);
  perform set_config('lock_timeout', lock_ms::text, true);
  select * into strict tail from {outbox_partitions}() order by from_seq desc limit 1;
  if not exists (select from pg_catalog.pg_constraint where conrelid = tail.partition and conname = tail.name || '_bound')
  then
    return 'none';
  end if;
  execute format('alter table %s validate constraint %I', tail.partition, tail.name || '_bound');
  return 'proved';
exception when lock_not_available then
  return 'locked';
end
$$;

-- Drops a partition that the caller found settled and old, if nothing speaks against it: 'dropped', 'locked' (somebody is
-- inside), 'unsettled', 'held' or 'kept' (a replay needs it), 'open' (it is among the last two) or 'gone'. newest: the
-- youngest created_at in it.
create function {drop_outbox_partition}(which text, newest timestamptz, lock_ms integer) returns text
language plpgsql security definer set search_path from current as $$
declare
  old record;
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
  execute format('select exists (select from only %s where settled_at is null)', old.partition) into found_one;
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

revoke execute on function {cut_outbox}(integer, bigint), {prove_outbox_cut}(integer),
  {drop_outbox_partition}(text, timestamptz, integer) from public;

-- Retention by partitions (docs/decisions/0007): what there is, and what may go. The functions are of migrations 0006 and
-- 0010. As in purge.sql, a row is settled by its marker, or where every cursor has passed its number and its transaction;
-- and every group of consumers must have passed it.

-- name: partition.list
-- In order, a few index probes each: size, ages of the first and last row, and what speaks against dropping it. Ages are in
-- seconds since 1970. Rows as estimated by the last analyze.
with passed as materialized (
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from {cursor} where (select source from {meta}) in ('log', 'wal')
), {part:purge.read}
select p.name, p.from_seq, p.to_seq, greatest(c.reltuples, 0)::bigint, pg_total_relation_size(c.oid),
       cast(extract(epoch from first.created_at) as double precision),
       cast(extract(epoch from last.created_at) as double precision),
       cast(extract(epoch from case when last.seq <= read.seq and last.tx < cast(read.xid::text as xid8)
         then coalesce(last.settled_at, case when last.seq <= passed.seq
           and last.tx < cast(passed.xid::text as xid8) then last.created_at end) end) as double precision),
       -- Of what has no marker, with cursors: what stands above them. A scan finds the rest.
       exists (select from {outbox} o where o.seq >= greatest(p.from_seq, passed.seq + 1) and o.seq < p.to_seq
               and o.settled_at is null)
         or exists (select from {outbox} o where o.seq > read.seq and o.seq >= p.from_seq and o.seq < p.to_seq),
       exists (select from {held_message} m
               where m.side = 'relay' and m.position >= p.from_seq and m.position < p.to_seq),
       exists (select from {keep} k where k.from_seq < p.to_seq or k.from_time <= last.created_at)
from {outbox_partitions}() p
cross join passed
cross join read
join pg_catalog.pg_class c on c.oid = p.partition
left join lateral (select created_at from {outbox} o where o.seq >= p.from_seq and o.seq < p.to_seq
                   order by o.seq limit 1) as first on true
left join lateral (select seq, tx, created_at, settled_at from {outbox} o where o.seq >= p.from_seq and o.seq < p.to_seq
                   order by o.seq desc limit 1) as last on true
order by p.from_seq;

-- name: partition.scan
-- One page behind :after: its last seq and size, how many of its rows are unsettled, how many settled too lately, and its
-- youngest row.
with passed as materialized (
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from {cursor} where (select source from {meta}) in ('log', 'wal')
), {part:purge.read}
select max(seq), count(*), count(*) filter (where settled_at is null),
       count(*) filter (where settled_at >= to_timestamp(cast(:before_s as double precision))),
       cast(extract(epoch from max(created_at)) as double precision)
from (select o.seq, created_at,
             case when o.seq <= read.seq and o.tx < cast(read.xid::text as xid8) then
               coalesce(settled_at, case when o.seq <= passed.seq and o.tx < cast(passed.xid::text as xid8)
                                         then created_at end) end as settled_at
      from {outbox} o cross join passed cross join read where o.seq > cast(:after as bigint) and o.seq < cast(:to_seq as bigint)
      order by o.seq limit cast(:limit as integer)) as page;

-- name: partition.cut
select {cut_outbox}(cast(:lock_ms as integer), cast(:room as bigint));

-- name: partition.prove
select {prove_outbox_cut}(cast(:lock_ms as integer));

-- name: partition.drop
select {drop_outbox_partition}(cast(:name as text), to_timestamp(cast(:newest_s as double precision)),
                               cast(:lock_ms as integer));

-- name: partition.inside
-- Who keeps us out: the transaction that has been open longest of those with a lock on the outbox.
select l.pid, cast(extract(epoch from clock_timestamp() - a.xact_start) as double precision)
from pg_catalog.pg_locks l left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
  and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
  and (l.relation = '{outbox}'::regclass or l.relation in (select partition from {outbox_partitions}()))
order by a.xact_start nulls last limit 1;

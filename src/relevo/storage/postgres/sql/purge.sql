-- Retention: small batches, each a transaction of its own, along a primary key, so that no statement is long. Nobody else
-- locks rows that are settled and old, but for another purge, which goes the same way and so cannot deadlock. What is
-- unsettled, held, or needed by a job is never touched.

-- name: purge.now
select cast(extract(epoch from clock_timestamp()) as double precision);

-- part: purge.read
-- What every group of consumers that read the outbox themselves has passed; without any, everything.
read as materialized (
  select coalesce(min(high_water), 9223372036854775807) as seq,
         coalesce(min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)), 9223372036854775807) as xid
  from {group_lane}
)

-- part: purge.page
-- A row is settled by its marker, or, with the sources `log` and `wal`, where every cursor has passed it: its number, and its
-- transaction. By the number alone rows would go that were not committed yet when a cursor moved over it. `xmin` is
-- stricter than what a snapshot shows and costs one comparison; a transaction that stays open holds retention back. Whatever
-- marker a row has, each group of consumers must have passed it as well.
{part:purge.read}, passed as materialized (
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from {cursor} where (select source from {meta}) in ('log', 'wal')
), page as materialized (
  select o.seq, event_id, created_at, outcome,
         case when o.seq <= read.seq and o.tx < cast(read.xid::text as xid8) then
           coalesce(settled_at, case when o.seq <= passed.seq and o.tx < cast(passed.xid::text as xid8)
                                     then created_at end) end as settled_at
  from {outbox} o cross join passed cross join read
  where o.seq > cast(:after as bigint) order by o.seq limit cast(:limit as integer)
)

-- part: purge.young
-- Whether all of a page is too young, and so all behind it: rows from the future, by a wrong clock or by hand, say nothing.
coalesce(min(created_at) filter (where created_at < clock_timestamp() + interval '1 day')
                >= to_timestamp(cast(:before_s as double precision)), false)

-- part: purge.over
-- What of a page may go.
settled_at < to_timestamp(cast(:before_s as double precision))
         and seq < coalesce((select min(from_seq) from {keep}), 9223372036854775807)
         and coalesce(created_at < (select min(from_time) from {keep}), true)
         and not (outcome = 'held' and exists (select from {held_message} m
                                               where m.side = 'relay' and m.event_id = page.event_id))

-- part: purge.gone
delete from {outbox} o
  where (o.settled_at < to_timestamp(cast(:before_s as double precision))
         or o.settled_at is null and o.tx < (select cast(xid::text as xid8) from passed))
    and o.seq = any (array(select seq from page where {part:purge.over}))

-- name: purge.count
-- One page from :after on: its last seq and size, how much of it may go, and whether all of it is too young.
with {part:purge.page}
select max(seq), count(*), count(*) filter (where {part:purge.over}),
       {part:purge.young}
from page;

-- name: purge.delete
with {part:purge.page}, gone as (
  {part:purge.gone}
  returning 1
)
select max(seq), count(*), (select count(*) from gone),
       {part:purge.young}
from page;

-- name: purge.archive
with {part:purge.page}, gone as (
  {part:purge.gone}
  returning *
), kept as (
  insert into {archive} (seq, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                         aggregate_version, payload, content_type, headers, created_at, settled_at, outcome)
  select seq, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
         payload, content_type, headers, created_at, coalesce(settled_at, clock_timestamp()),
         coalesce(outcome, 'published')
  from gone order by seq
  on conflict (seq) do nothing
)
select max(seq), count(*), (select count(*) from gone),
       {part:purge.young}
from page;

-- name: purge.consumers
-- The names in the inbox, one index probe each.
with recursive names as (
  (select consumer from {inbox} order by consumer limit 1)
  union all
  select (select i.consumer from {inbox} i where i.consumer > n.consumer order by i.consumer limit 1)
  from names n where n.consumer is not null
)
select consumer from names where consumer is not null;

-- name: purge.inbox_count
with page as materialized (
  select event_id, generation, processed_at, outcome from {inbox}
  where consumer = cast(:consumer as text)
    and (event_id, generation) > (cast(:after as uuid), cast(:generation as integer))
  order by event_id, generation limit cast(:limit as integer)
), last as (select event_id, generation from page order by event_id desc, generation desc limit 1)
select cast((select event_id from last) as text), (select generation from last), count(*),
       count(*) filter (where processed_at < to_timestamp(cast(:before_s as double precision)) and outcome <> 'discarded'
         and not exists (select from {held_message} m
                         where m.side = 'consumer' and m.consumer = cast(:consumer as text)
                           and m.event_id = page.event_id))
from page;

-- name: purge.inbox_delete
with page as materialized (
  select ctid, event_id, generation, processed_at, outcome from {inbox}
  where consumer = cast(:consumer as text)
    and (event_id, generation) > (cast(:after as uuid), cast(:generation as integer))
  order by event_id, generation limit cast(:limit as integer)
), last as (select event_id, generation from page order by event_id desc, generation desc limit 1), gone as (
  delete from {inbox} where ctid = any (array(
    select p.ctid from page p
    where p.processed_at < to_timestamp(cast(:before_s as double precision)) and p.outcome <> 'discarded'
      and not exists (select from {held_message} m
                      where m.side = 'consumer' and m.consumer = cast(:consumer as text) and m.event_id = p.event_id)))
  returning 1
)
select cast((select event_id from last) as text), (select generation from last), count(*), (select count(*) from gone)
from page;

-- name: purge.effects_count
-- Done long ago, of a message that is held nowhere; nothing at all while a replay runs or waits to go on, since it may
-- record the same effects again.
with page as materialized (
  select state, event_id, created_at, finished_at, effect_id from {effect}
  where effect_id > cast(:after as bigint) order by effect_id limit cast(:limit as integer)
)
select max(effect_id), count(*),
       count(*) filter (where state = 'done' and finished_at < to_timestamp(cast(:before_s as double precision))
         and not exists (select from {held_message} m where m.event_id = page.event_id)
         and not exists (select from {job} j where j.kind = 'replay' and j.state in ('running', 'paused'))),
       {part:purge.young}
from page;

-- name: purge.effects_delete
with page as materialized (
  select state, event_id, created_at, finished_at, effect_id from {effect}
  where effect_id > cast(:after as bigint) order by effect_id limit cast(:limit as integer)
), gone as (
  delete from {effect}
  where state = 'done' and finished_at < to_timestamp(cast(:before_s as double precision)) and effect_id = any (array(
    select p.effect_id from page p
    where p.state = 'done' and p.finished_at < to_timestamp(cast(:before_s as double precision))
      and not exists (select from {held_message} m where m.event_id = p.event_id)
      and not exists (select from {job} j where j.kind = 'replay' and j.state in ('running', 'paused'))))
  returning 1
)
select max(effect_id), count(*), (select count(*) from gone),
       {part:purge.young}
from page;

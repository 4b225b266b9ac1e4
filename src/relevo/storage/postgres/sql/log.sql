-- The source `log`: a position, not state. Nothing is written for a row that was simply published. A window goes from the
-- cursor's snapshot to a newer one (src/relevo/sources/log/windows.py).

-- name: log.load
-- xmin is the version of a row: it tells a cursor that somebody else, or a commit without reply, has moved.
select lane, topic_group, snapshot, high_water, window_snapshot, coalesce(window_position, 0), xmin::text
from {cursor} where lane = any(cast(:lanes as smallint[]));

-- name: log.begin_lanes
insert into {cursor} (lane) select unnest(cast(:lanes as smallint[])) on conflict do nothing;

-- part: log.timeline
case when pg_is_in_recovery() then -1
     else ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer end

-- name: log.window
-- A statement of its own, outside of any transaction: a snapshot taken in one that has an xid can call that xid visible.
-- On a standby the list of running transactions is empty, so its snapshots lose events; after a failover numbers begin
-- again that were seen before. (pg_control_checkpoint() is stale after a promotion.)
select pg_current_snapshot()::text, coalesce((select max(seq) from {outbox}), 0),
       {part:log.timeline};

-- part: log.found
-- One reader's page: late rows, then main rows, in seq order, bounded by count and bytes, at least one. `owned` says of each
-- lane whether it is ours. Without a window, up to what this very statement sees.
-- Late rows must come by the index on (tx, seq): with `order by seq` and a plain limit the planner walks the primary key
-- (measured: 1.2 ms a poll and growing). A row comparison is something only that index can do, and in order, so that a
-- late set of a million rows is read page by page; `seq + 0` keeps the primary key out of the other branch.
at as materialized (
  select coalesce(cast(:window as pg_snapshot), pg_current_snapshot()) as s2
), page as (
  select * from (
    (select o.* from unnest(cast(:running as xid8[])) as r (xid) cross join lateral (
       select * from {outbox} l
       where (l.tx, l.seq) > (r.xid, cast(:position as bigint)) and (l.tx, l.seq) <= (r.xid, cast(:high_water as bigint))
         and pg_visible_in_snapshot(l.tx, (select s2 from at)) and (l.settled_at is null or :settled)
         and (select lanes from owned)[l.bucket % :lane_count + 1]
         and l.topic <> all(cast(:without as text[])) and (l.topic = any(cast(:topics as text[]))) is not false
       order by l.tx, l.seq limit :messages_max) o
     where cast(:high_water as bigint) > 0)
    union all
    (select o.* from {outbox} o
     where cast(:high_water as bigint) > 0 and o.tx >= cast(cast(:xmax as text) as xid8)
       and o.seq + 0 <= cast(:high_water as bigint) and o.seq + 0 > cast(:position as bigint)
       and pg_visible_in_snapshot(o.tx, (select s2 from at)) and (o.settled_at is null or :settled)
       and (select lanes from owned)[o.bucket % :lane_count + 1]
       and o.topic <> all(cast(:without as text[])) and (o.topic = any(cast(:topics as text[]))) is not false
     order by o.seq + 0 limit :messages_max)
    union all
    (select o.* from {outbox} o
     where o.seq > cast(:high_water as bigint) and o.seq <= cast(:cap as bigint)
       and pg_visible_in_snapshot(o.tx, (select s2 from at)) and (o.settled_at is null or :settled)
       and (select lanes from owned)[o.bucket % :lane_count + 1]
       and o.topic <> all(cast(:without as text[])) and (o.topic = any(cast(:topics as text[]))) is not false
     order by o.seq limit :messages_max)
  ) as found order by seq limit :messages_max
), sized as (
  select page.*, sum(coalesce(octet_length(payload), 0)) over (order by seq rows unbounded preceding) as bytes
  from page
)

-- part: log.rows
select seq, (bucket % :lane_count)::integer,
       topic, key, payload, textsend(event_id::text), textsend(btrim(to_json(created_at)::text, '"')), kind, type,
       schema_version, content_type, aggregate_type, aggregate_id, aggregate_version, headers::text, bytes
from sized
where bytes - coalesce(octet_length(payload), 0) < :bytes_max
order by seq

-- part: log.owned
owned as materialized (
  select array_agg(l.lane is not null order by n.lane) as lanes
  from generate_series(0, :lane_count - 1) as n (lane)
  left join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch) on o.lane = n.lane
  left join {lane} l on l.lane = o.lane and l.epoch = o.epoch and l.holder = :holder
)

-- name: log.page
with {part:log.owned}, {part:log.found}
{part:log.rows};

-- name: log.look
-- Window and page in one, for whoever has read everything up to the last window: a relay that follows asks this a hundred
-- times a second, and each statement wakes a process at either end. At least one row, which then says the window alone.
with {part:log.owned}, {part:log.found}, rows as materialized (
{part:log.rows}
), seen as materialized (
  select (select s2 from at)::text as s2, coalesce((select max(seq) from {outbox}), 0) as top,
         {part:log.timeline} as timeline
)
select rows.*, seen.s2, seen.top, seen.timeline from seen left join rows on true order by rows.seq;

-- name: log.here
-- Asked inside the settle: a failover between read and settle makes what was read somebody else's history.
select {part:log.timeline};

-- name: log.save
-- The whole settlement of a clean page: one statement, one transaction. The lanes are locked against a takeover, and their
-- epochs checked, as every settle does; a cursor that is not the one we left stays as it is.
with here as materialized (
  select {part:log.timeline} as timeline
), mine as materialized (
  select l.lane from {lane} l
  join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch)
    on (o.lane, o.epoch) = (l.lane, l.epoch)
  where l.holder = :holder and (select timeline from here) = :timeline
  order by l.lane for share of l
), saved as (
  update {cursor} c
  set snapshot = (cast(:snapshots as text[]))[o.place], high_water = (cast(:high_waters as bigint[]))[o.place],
      window_snapshot = nullif((cast(:windows as text[]))[o.place], ''),
      window_position = (cast(:positions as bigint[]))[o.place], saved_at = clock_timestamp()
  from unnest(cast(:cursor_lanes as smallint[]), cast(:groups as text[]), cast(:versions as text[]),
              cast(:places as integer[])) as o (lane, topic_group, version, place)
  join mine on mine.lane = o.lane
  where c.lane = o.lane and c.topic_group = o.topic_group and c.xmin::text = o.version
  returning c.lane, c.topic_group
)
select (select timeline from here), saved.lane, saved.topic_group,
       (pg_current_xact_id()::text::bigint % 4294967296)::text
from (select 1) as one left join saved on true;

-- name: log.add_groups
insert into {cursor} (lane, topic_group, snapshot, high_water, window_snapshot, window_position)
select o.lane, o.topic_group, (cast(:snapshots as text[]))[o.place], (cast(:high_waters as bigint[]))[o.place],
       nullif((cast(:windows as text[]))[o.place], ''), (cast(:positions as bigint[]))[o.place]
from unnest(cast(:cursor_lanes as smallint[]), cast(:groups as text[]), cast(:places as integer[]))
     as o (lane, topic_group, place)
on conflict do nothing;

-- name: log.drop_groups
delete from {cursor} c
using unnest(cast(:cursor_lanes as smallint[]), cast(:groups as text[])) as o (lane, topic_group)
where (c.lane, c.topic_group) = (o.lane, o.topic_group);

-- name: log.pending
-- For `relevo status`: what no cursor has passed yet, and the age of the oldest of it in seconds. Looked for above the
-- slowest cursor and among the transactions that it did not see, by the two indexes, at most :cap rows each.
with passed as materialized (
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from {cursor}
), open as (
  (select seq, tx, bucket, topic, created_at from {outbox}
   where seq > (select seq from passed) and settled_at is null order by seq limit :cap)
  union all
  (select seq, tx, bucket, topic, created_at from {outbox}
   where tx >= (select cast(xid::text as xid8) from passed) and seq + 0 <= (select seq from passed)
     and settled_at is null limit :cap)
)
select count(*), cast(extract(epoch from clock_timestamp() - min(o.created_at)) as double precision)
from open o join {cursor} c on c.lane = o.bucket % (select lanes from {meta}) and c.topic_group = coalesce(
  (select g.topic_group from {cursor} g where g.lane = o.bucket % (select lanes from {meta}) and g.topic_group = o.topic),
  '*')
where not (o.seq <= c.high_water and pg_visible_in_snapshot(o.tx, cast(c.snapshot as pg_snapshot)));

-- Moving between the sources `mark` and `log` (docs/how-to/move-between-sources.md). Times are this database's clock.

-- name: moving.stands
-- The source that the tables are read by, and whether a move keeps relays from their lanes at the moment.
select source, coalesce(moving_until > clock_timestamp(), false), moved_from from {meta};

-- name: moving.close
-- Relays let go of their lanes, for so long at most: a move that dies holds nobody up.
update {meta} set moving_until = clock_timestamp() + :lease_s * interval '1 second'
where source = cast(:origin as text) returning 1;

-- name: moving.open
update {meta} set moving_until = null where moving_until is not null;

-- name: moving.lanes
select lane, epoch, holder is not null and expires_at > clock_timestamp() from {lane} order by lane;

-- name: moving.lock_lanes
select lane, epoch, holder is not null and expires_at > clock_timestamp() from {lane} order by lane for update;

-- name: moving.relays
-- Who lives, how many lanes it holds, and what it reads with, if it is of a version that says so.
select p.name, p.detail ->> 'source', count(l.lane) from {process} p
left join {lane} l on l.holder = p.process_id and l.expires_at > clock_timestamp()
where p.role = 'relay' and p.expires_at > clock_timestamp()
group by p.process_id, p.name, p.detail order by p.name;

-- name: moving.mark
-- One page of rows without a marker, up to where the foremost cursor stands: those that their cursor has passed get one. As
-- their time that of their creation: so retention judges them as it did by the cursors. What was passed stays passed, so
-- relays may be at work.
with at as materialized (
  select lane, topic_group, high_water, cast(snapshot as pg_snapshot) as snapshot, window_position,
         cast(window_snapshot as pg_snapshot) as late
  from {cursor}
), page as materialized (
  select o.seq, o.tx, o.topic, o.bucket % (select lanes from {meta}) as lane from {outbox} o
  where o.settled_at is null and o.seq > cast(:after as bigint) and o.seq <= (select max(high_water) from {cursor})
  order by o.seq limit cast(:limit as integer)
), passed as (
  select p.seq from page p
  join at on at.lane = p.lane and at.topic_group = coalesce(
    (select g.topic_group from at g where g.lane = p.lane and g.topic_group = p.topic), '*')
  where p.seq <= at.high_water and (pg_visible_in_snapshot(p.tx, at.snapshot)
        or at.late is not null and p.seq <= at.window_position and pg_visible_in_snapshot(p.tx, at.late))
), marked as (
  update {outbox} o set settled_at = created_at, outcome = 'published'
  where o.seq = any (array(select seq from passed)) and o.settled_at is null
  returning 1
)
select max(seq), count(*), (select count(*) from marked) from page;

-- name: moving.rebase
-- Rows that were restored from another cluster may have xids that this one has not given yet: no snapshot shows them. Xid 2 is
-- in every snapshot's past.
update {outbox} set tx = '2' where seq = any (array(
  select seq from {outbox} where tx >= pg_snapshot_xmax(pg_current_snapshot()) order by tx, seq
  limit cast(:limit as integer)))
returning 1;

-- name: moving.place
-- One statement, one snapshot: every row up to the number that is visible in the snapshot has a marker. What is behind it and
-- has one is left out by the pages; what is below it and commits later comes as a late row.
select pg_current_snapshot()::text, greatest(0, coalesce(
  (select seq - 1 from {outbox} where settled_at is null order by seq limit 1),
  (select seq from {outbox} order by seq desc limit 1), 0));

-- name: moving.forget_cursors
delete from {cursor};

-- name: moving.cursors
insert into {cursor} (lane, snapshot, high_water)
select lane, cast(:snapshot as text), cast(:high_water as bigint) from {lane};

-- name: moving.switch
update {meta} set source = cast(:target as text), moved_from = cast(:origin as text), moving_until = null
where source = cast(:origin as text) and moving_until > clock_timestamp() returning 1;

-- name: moving.release
update {lane} set holder = null, epoch = epoch + 1, expires_at = '-infinity';

-- name: moving.begun
-- The move that somebody began and did not end.
select cast(job_id as text), cast(filter as text), done, total,
       cast(extract(epoch from clock_timestamp() - started_at) as double precision)
from {job} where kind = 'source.move' and state = 'running' order by started_at desc limit 1;

-- name: moving.size
-- Rows of the outbox, as the last analyze estimated, and partitions.
select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint, count(*)
from {outbox_partitions}() p join pg_catalog.pg_class c on c.oid = p.partition;

-- name: moving.same_system
select case when has_function_privilege('pg_control_system()', 'execute')
       then coalesce(system_id = (select system_identifier::text from pg_control_system()), true) else true end from {meta};

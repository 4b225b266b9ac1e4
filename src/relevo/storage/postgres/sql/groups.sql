-- Groups of consumers that read the outbox themselves: lanes and cursors as the relays have them, per group. All times are
-- this database's clock.

-- name: groups.topics_known
select topic from {topic} where topic = any(cast(:topics as text[]));

-- name: groups.create_topics
insert into {topic} (topic) select unnest(cast(:topics as text[])) on conflict do nothing returning topic;

-- name: groups.create
-- All lanes begin at one place: before everything, or where the caller's own snapshot stood.
with made as (
  insert into {group} (group_name, topics) values (:name, cast(:topics as text[])) on conflict do nothing
  returning group_name
)
insert into {group_lane} (group_name, lane, snapshot, high_water)
select group_name, lane, :snapshot, cast(:high_water as bigint)
from made cross join generate_series(0, (select lanes from {meta}) - 1) as lane;

-- name: groups.join
-- Says that this member lives. A new one says what the group reads from now on.
with living as (
  insert into {group_member} as m (group_name, member, topics, host, pid, expires_at)
  select group_name, :member, cast(:topics as text[]), :host, :pid,
         clock_timestamp() + :lease_s * interval '1 second'
  from {group} where group_name = :name
  on conflict (group_name, member) do update set expires_at = excluded.expires_at
  returning (m.xmax = 0) as is_new
), told as (
  update {group} set topics = cast(:topics as text[])
  where group_name = :name and topics <> cast(:topics as text[]) and exists (select from living where is_new)
)
select is_new from living;

-- name: groups.bury
delete from {group_member} where group_name = :name and expires_at < clock_timestamp();

-- name: groups.living
select member, topics from {group_member}
where group_name = :name and expires_at >= clock_timestamp() order by joined_at, member;

-- part: groups.mine
-- The rows of lanes that are still ours, locked.
mine as materialized (
  select l.lane from {group_lane} l
  join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch)
    on (o.lane, o.epoch) = (l.lane, l.epoch)
  where l.group_name = :name and l.holder = :holder
  order by l.lane for update of l
)

-- name: groups.renew
with {part:groups.mine}
update {group_lane} l set expires_at = clock_timestamp() + :lease_s * interval '1 second'
from mine where l.group_name = :name and l.lane = mine.lane
returning l.lane;

-- name: groups.acquire
with free as (
  select lane from {group_lane}
  where group_name = :name and lane = any(cast(:wanted as smallint[]))
    and (holder is null or holder = :holder or expires_at < clock_timestamp())
  order by lane for update skip locked
)
update {group_lane} l
set holder = :holder, epoch = l.epoch + 1, expires_at = clock_timestamp() + :lease_s * interval '1 second'
from free where l.group_name = :name and l.lane = free.lane
returning l.lane, l.epoch, l.snapshot, l.high_water, l.window_snapshot, coalesce(l.window_position, 0);

-- name: groups.release
with {part:groups.mine}
update {group_lane} l set holder = null, epoch = l.epoch + 1, expires_at = '-infinity'
from mine where l.group_name = :name and l.lane = mine.lane
returning l.lane;

-- name: groups.leave
delete from {group_member} where group_name = :name and member = :member;

-- name: groups.save
-- Moves cursors of lanes that are still ours, under their locks; nothing after a failover, whose history may be another.
with here as materialized (
  select {part:log.timeline} as timeline
), {part:groups.mine}, saved as (
  update {group_lane} l
  set snapshot = (cast(:snapshots as text[]))[o.place], high_water = (cast(:high_waters as bigint[]))[o.place],
      window_snapshot = nullif((cast(:windows as text[]))[o.place], ''),
      window_position = (cast(:positions as bigint[]))[o.place], saved_at = clock_timestamp()
  from unnest(cast(:lanes as smallint[]), cast(:places as integer[])) as o (lane, place)
  join mine on mine.lane = o.lane
  where l.group_name = :name and l.lane = o.lane and (select timeline from here) = :timeline
  returning l.lane
)
select (select timeline from here), saved.lane from (select 1) as one left join saved on true;

-- name: groups.page
with owned as materialized (
  select array_agg(l.lane is not null order by n.lane) as lanes
  from generate_series(0, :lane_count - 1) as n (lane)
  left join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch) on o.lane = n.lane
  left join {group_lane} l on l.group_name = :name and l.lane = o.lane and l.epoch = o.epoch and l.holder = :holder
), {part:log.found}
{part:log.rows};

-- part: groups.ahead
-- Rows that may be ahead of some cursor of `at`, which has (lane, snapshot, high_water): above the slowest, and among the
-- transactions that one of them did not see. By the two indexes, at most :cap rows each.
slowest as materialized (
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from at
), ahead as materialized (
  (select seq, tx, bucket, topic, created_at from {outbox}
   where seq > (select seq from slowest) order by seq limit :cap)
  union all
  (select seq, tx, bucket, topic, created_at from {outbox}
   where tx >= (select cast(xid::text as xid8) from slowest) and seq + 0 <= (select seq from slowest) limit :cap)
)

-- part: groups.waiting
-- Of `ahead`, what its lane's cursor in `at` has not passed.
from ahead o join at on at.lane = o.bucket % (select lanes from {meta})
where o.topic = any(cast(:topics as text[]))
  and not (o.seq <= at.high_water and pg_visible_in_snapshot(o.tx, cast(at.snapshot as pg_snapshot)))
  and not (at.window_snapshot is not null and o.seq <= at.window_position
           and pg_visible_in_snapshot(o.tx, cast(at.window_snapshot as pg_snapshot)))

-- name: groups.lag
-- By lane, what the given cursors have not passed of the given topics.
with at as materialized (
  select o.lane, (cast(:snapshots as text[]))[o.place] as snapshot, (cast(:high_waters as bigint[]))[o.place] as high_water,
         nullif((cast(:windows as text[]))[o.place], '') as window_snapshot,
         (cast(:positions as bigint[]))[o.place] as window_position
  from unnest(cast(:lanes as smallint[]), cast(:places as integer[])) as o (lane, place)
), {part:groups.ahead}
select at.lane, count(*)
{part:groups.waiting}
group by at.lane;

-- name: groups.append_nothing
-- Whether rows could be written now: takes the lock that an insert takes.
insert into {outbox} (event_id, bucket, topic, type)
select cast(:event_id as uuid), cast(0 as smallint), '', '' where false;

-- name: groups.history_end
select coalesce(max(seq), 0) from {outbox};

-- name: groups.history_begin
-- The place before the first row that came in at that time or later; times grow with seq, but for the overlap of transactions.
select coalesce((select seq from {outbox}
                 where created_at < cast(:since as timestamptz) - interval '10 minutes' order by seq desc limit 1), 0);

-- name: groups.history
select seq, topic, key, payload, textsend(event_id::text), textsend(btrim(to_json(created_at)::text, '"')), kind, type,
       schema_version, content_type, aggregate_type, aggregate_id, aggregate_version, headers::text
from {outbox}
where seq > cast(:after as bigint) and seq <= cast(:until as bigint) and topic = any(cast(:topics as text[]))
order by seq limit :limit;

-- name: groups.place
-- Which tables these are, in their cluster, whatever name or URL leads to them.
select concat_ws('/', (select oid from pg_catalog.pg_database where datname = current_database()),
                 '{outbox}'::regclass::oid, cast(extract(epoch from created_at) * 1000000 as bigint)) from {meta};

-- name: groups.names
select group_name from {group} order by group_name;

-- name: groups.listed
-- For people: every group, who lives of it, and where its slowest lane stands.
select g.group_name, g.topics, cast(extract(epoch from clock_timestamp() - g.created_at) as double precision),
       (select count(*) from {group_member} m where m.group_name = g.group_name and m.expires_at >= clock_timestamp()),
       cast(extract(epoch from clock_timestamp() - (select max(saved_at) from {group_lane} l
                                                    where l.group_name = g.group_name)) as double precision),
       (select min(high_water) from {group_lane} l where l.group_name = g.group_name)
from {group} g order by g.group_name;

-- name: groups.behind
-- How many messages a group has before it (the count stops near :cap), and the age of the oldest.
with at as materialized (
  select lane, snapshot, high_water, window_snapshot, window_position from {group_lane} where group_name = :name
), {part:groups.ahead}
select count(*), cast(extract(epoch from clock_timestamp() - min(o.created_at)) as double precision)
{part:groups.waiting};

-- name: groups.drop
-- Unless one of its members lives.
delete from {group} g where group_name = :name
  and not exists (select from {group_member} m where m.group_name = :name and m.expires_at >= clock_timestamp())
returning group_name;

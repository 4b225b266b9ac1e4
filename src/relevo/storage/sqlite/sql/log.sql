-- The source `log` on SQLite: one writer at a time, so seq order is commit order, there are no late rows, and a snapshot is
-- a number: the newest row's.

-- name: log.load
select lane, topic_group, '', high_water, null, 0, '' from {cursor} where lane in (select value from json_each(:lanes));

-- name: log.begin_lanes
insert into {cursor} (lane) select value from json_each(:lanes) where true on conflict do nothing;

-- name: log.window
select cast(coalesce((select seq from sqlite_sequence where name = '{prefix}outbox'), 0) as text),
       coalesce((select max(seq) from {outbox}), 0), 0;

-- name: log.page
with owned as materialized (
  select l.lane from json_each(:lanes) o
  join json_each(:epochs) e on e.key = o.key
  join {lane} l on l.lane = o.value and l.epoch = e.value and l.holder = :holder
), page as (
  select * from {outbox}
  where seq > :high_water and seq <= :cap and settled_at is null and bucket % :lane_count in (select lane from owned)
    and topic not in (select value from json_each(:without)) and (:topic is null or topic = :topic)
  order by seq limit :messages_max
)
select seq, bucket % :lane_count, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers, created_at, bytes
from (
  select page.*, sum(coalesce(length(payload), 0)) over (order by seq rows unbounded preceding) as bytes from page
)
where bytes - coalesce(length(payload), 0) < :bytes_max
order by seq;

-- name: log.here
select 0;

-- name: log.save
update {cursor} set
  high_water = (select h.value from json_each(:cursor_lanes) o join json_each(:groups) g on g.key = o.key
                join json_each(:places) p on p.key = o.key join json_each(:high_waters) h on h.key = p.value - 1
                where o.value = {cursor}.lane and g.value = {cursor}.topic_group),
  saved_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where exists (select 1 from json_each(:cursor_lanes) o join json_each(:groups) g on g.key = o.key
              where o.value = {cursor}.lane and g.value = {cursor}.topic_group)
  and lane in (select l.lane from json_each(:lanes) o join json_each(:epochs) e on e.key = o.key
               join {lane} l on l.lane = o.value and l.epoch = e.value and l.holder = :holder)
returning :timeline, lane, topic_group, '';

-- name: log.add_groups
insert into {cursor} (lane, topic_group, high_water)
select o.value, g.value, h.value from json_each(:cursor_lanes) o join json_each(:groups) g on g.key = o.key
join json_each(:places) p on p.key = o.key join json_each(:high_waters) h on h.key = p.value - 1
where true on conflict do nothing;

-- name: log.drop_groups
delete from {cursor} where exists (
  select 1 from json_each(:cursor_lanes) o join json_each(:groups) g on g.key = o.key
  where o.value = {cursor}.lane and g.value = {cursor}.topic_group);

-- name: log.pending
-- For `relevo status`: what no cursor has passed yet, and the age of the oldest of it in seconds.
select count(*), (cast((julianday('now') - 2440587.5) * 86400000 as integer) - min(o.created_at)) / 1000.0
from (select * from {outbox} where seq > (select min(high_water) from {cursor}) and settled_at is null
      order by seq limit :cap) o
left join {cursor} c on c.lane = o.bucket % (select lanes from {meta}) and c.topic_group = coalesce(
  (select g.topic_group from {cursor} g where g.lane = o.bucket % (select lanes from {meta}) and g.topic_group = o.topic),
  '*')
where c.lane is null or o.seq > c.high_water;

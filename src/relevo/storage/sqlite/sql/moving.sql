-- Moving between the sources `mark` and `log` (docs/how-to/move-between-sources.md). One writer at a time: seq order is commit
-- order.

-- name: moving.stands
select source, coalesce(moving_until > cast((julianday('now') - 2440587.5) * 86400000 as integer), 0), moved_from from {meta};

-- name: moving.close
update {meta} set moving_until = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where source = :origin returning 1;

-- name: moving.open
update {meta} set moving_until = null where moving_until is not null;

-- name: moving.lanes
select lane, epoch, holder is not null and expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
from {lane} order by lane;

-- name: moving.lock_lanes
select lane, epoch, holder is not null and expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
from {lane} order by lane;

-- name: moving.relays
select p.name, json_extract(p.detail, '$.source'), count(l.lane) from {process} p
left join {lane} l on l.holder = p.process_id
  and l.expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
where p.role = 'relay' and p.expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
group by p.process_id order by p.name;

-- name: moving.page
select max(seq), count(*) from (
  select seq from {outbox} where settled_at is null and seq > :after and seq <= (select max(high_water) from {cursor})
  order by seq limit :limit);

-- name: moving.mark
update {outbox} set settled_at = created_at, outcome = 'published'
where settled_at is null and seq > :after and seq <= :last and seq <= (
  select c.high_water from {cursor} c
  where c.lane = {outbox}.bucket % (select lanes from {meta}) and c.topic_group = coalesce(
    (select g.topic_group from {cursor} g
     where g.lane = {outbox}.bucket % (select lanes from {meta}) and g.topic_group = {outbox}.topic), '*'))
returning 1;

-- name: moving.rebase
select 1 where :limit < 0;

-- name: moving.place
select '1:1:', max(0, coalesce(
  (select seq - 1 from {outbox} where settled_at is null order by seq limit 1),
  (select seq from {outbox} order by seq desc limit 1), 0));

-- name: moving.forget_cursors
delete from {cursor};

-- name: moving.cursors
insert into {cursor} (lane, high_water) select lane, :high_water from {lane};

-- name: moving.switch
update {meta} set source = :target, moved_from = :origin, moving_until = null
where source = :origin and moving_until > cast((julianday('now') - 2440587.5) * 86400000 as integer) returning 1;

-- name: moving.release
update {lane} set holder = null, epoch = epoch + 1, expires_at = 0;

-- name: moving.begun
select job_id, filter, done, total,
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - started_at) / 1000.0
from {job} where kind = 'source.move' and state = 'running' order by started_at desc limit 1;

-- name: moving.size
select count(*), 1 from {outbox};

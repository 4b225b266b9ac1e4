-- Lanes and the relays that share them. All times are this database's clock.

-- name: relays.living
select process_id from {process} where role = 'relay' and expires_at > clock_timestamp() order by process_id;

-- name: lanes.count
select lanes from {meta};

-- name: lanes.renew
with mine as (
  select l.lane from {lane} l
  join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch)
    on (o.lane, o.epoch) = (l.lane, l.epoch)
  where l.holder = :holder
  order by l.lane for update of l
)
update {lane} l set expires_at = clock_timestamp() + :lease_s * interval '1 second'
from mine where l.lane = mine.lane
returning l.lane;

-- name: lanes.acquire
with free as (
  select lane from {lane}
  where lane = any(cast(:wanted as smallint[])) and (holder is null or expires_at < clock_timestamp())
  order by lane for update skip locked
)
update {lane} l
set holder = :holder, epoch = l.epoch + 1, expires_at = clock_timestamp() + :lease_s * interval '1 second'
from free where l.lane = free.lane
returning l.lane, l.epoch;

-- name: lanes.release
with mine as (
  select l.lane from {lane} l
  join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch)
    on (o.lane, o.epoch) = (l.lane, l.epoch)
  where l.holder = :holder
  order by l.lane for update of l
)
update {lane} l set holder = null, epoch = l.epoch + 1, expires_at = '-infinity'
from mine where l.lane = mine.lane
returning l.lane;

-- name: lanes.lock
-- The lock gives this transaction its xid, if it has none yet.
select l.lane, pg_current_xact_id()::text::bigint from {lane} l
join unnest(cast(:lanes as smallint[]), cast(:epochs as bigint[])) as o (lane, epoch)
  on (o.lane, o.epoch) = (l.lane, l.epoch)
where l.holder = :holder
order by l.lane for share of l;

-- name: destinations.pause
insert into {destination} (topic, process_id, reason) values (:topic, :process_id, :reason)
on conflict (topic, process_id) do update set reason = excluded.reason;

-- name: destinations.resume
delete from {destination} where topic = :topic and process_id = :process_id;

-- name: destinations.forget
delete from {destination} where process_id = :process_id or process_id not in (select process_id from {process});

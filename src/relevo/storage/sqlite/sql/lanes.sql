-- Lanes and the relays that share them. Times are this machine's clock, in integer milliseconds.

-- name: relays.living
select process_id from {process}
where role = 'relay' and expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
order by process_id;

-- name: lanes.count
select lanes from {meta};

-- name: lanes.renew
update {lane} set expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where holder = :holder and exists (
  select 1 from json_each(:lanes) l join json_each(:epochs) e on e.key = l.key
  where l.value = {lane}.lane and e.value = {lane}.epoch)
returning lane;

-- name: lanes.acquire
update {lane} set holder = :holder, epoch = epoch + 1,
  expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where lane in (select value from json_each(:wanted))
  and (holder is null or expires_at < cast((julianday('now') - 2440587.5) * 86400000 as integer))
returning lane, epoch;

-- name: lanes.release
update {lane} set holder = null, epoch = epoch + 1, expires_at = 0
where holder = :holder and exists (
  select 1 from json_each(:lanes) l join json_each(:epochs) e on e.key = l.key
  where l.value = {lane}.lane and e.value = {lane}.epoch)
returning lane;

-- name: lanes.lock
select lane, 0 from {lane}
where holder = :holder and exists (
  select 1 from json_each(:lanes) l join json_each(:epochs) e on e.key = l.key
  where l.value = {lane}.lane and e.value = {lane}.epoch);

-- name: destinations.pause
insert into {destination} (topic, process_id, reason) values (:topic, :process_id, :reason)
on conflict (topic, process_id) do update set reason = excluded.reason;

-- name: destinations.resume
delete from {destination} where topic = :topic and process_id = :process_id;

-- name: destinations.forget
delete from {destination} where process_id = :process_id or process_id not in (select process_id from {process});

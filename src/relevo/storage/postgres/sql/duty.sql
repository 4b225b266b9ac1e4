-- One owner for work that needs doing once. Times are this database's clock.

-- name: duty.take
-- Free, expired or ours already: ours until :lease_s from now. A change of owner raises the epoch. No row: somebody else's.
insert into {duty} (name, holder, epoch, expires_at)
values (cast(:name as text), cast(:holder as uuid), 1,
        clock_timestamp() + make_interval(secs => cast(:lease_s as double precision)))
on conflict (name) do update
set epoch = {duty}.epoch + case when {duty}.holder = excluded.holder then 0 else 1 end,
    holder = excluded.holder, expires_at = excluded.expires_at
where {duty}.holder is null or {duty}.holder = excluded.holder or {duty}.expires_at < clock_timestamp()
returning epoch, cast(extract(epoch from clock_timestamp() - done_at) as double precision);

-- name: duty.lock
-- Holds a takeover back until this transaction ends. No row: the duty is somebody else's by now.
select 1 from {duty}
where name = cast(:name as text) and holder = cast(:holder as uuid) and epoch = cast(:epoch as bigint)
for update;

-- name: duty.done
update {duty} set done_at = clock_timestamp()
where name = cast(:name as text) and holder = cast(:holder as uuid) and epoch = cast(:epoch as bigint);

-- name: duty.leave
update {duty} set holder = null, epoch = epoch + 1, expires_at = '-infinity' where holder = cast(:holder as uuid);

-- name: duty.leave_one
update {duty} set holder = null, epoch = epoch + 1, expires_at = '-infinity'
where name = cast(:name as text) and holder = cast(:holder as uuid) and epoch = cast(:epoch as bigint);

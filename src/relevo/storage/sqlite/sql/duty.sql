-- One owner for work that needs doing once. Times are this machine's clock, in integer milliseconds.

-- name: duty.take
-- Free, expired or ours already: ours until :lease_s from now. A change of owner raises the epoch. No row: somebody else's.
insert into {duty} (name, holder, epoch, expires_at)
values (:name, :holder, 1, cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer))
on conflict (name) do update
set epoch = epoch + case when holder = excluded.holder then 0 else 1 end,
    holder = excluded.holder, expires_at = excluded.expires_at
where holder is null or holder = excluded.holder
   or {duty}.expires_at < cast((julianday('now') - 2440587.5) * 86400000 as integer)
returning epoch, (cast((julianday('now') - 2440587.5) * 86400000 as integer) - done_at) / 1000.0;

-- name: duty.lock
select 1 from {duty} where name = :name and holder = :holder and epoch = :epoch;

-- name: duty.done
update {duty} set done_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where name = :name and holder = :holder and epoch = :epoch;

-- name: duty.leave
update {duty} set holder = null, epoch = epoch + 1, expires_at = 0 where holder = :holder;

-- name: duty.leave_one
update {duty} set holder = null, epoch = epoch + 1, expires_at = 0
where name = :name and holder = :holder and epoch = :epoch;

-- Who is running. Rows expire by this machine's clock; a process that stops in good order removes its own.

-- name: process.register
insert into {process} (process_id, role, name, host, pid, version, topics, detail, expires_at)
values (:process_id, :role, :name, :host, :pid, :version, :topics, :detail,
        cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer))
on conflict (process_id) do update set detail = excluded.detail, expires_at = excluded.expires_at;

-- name: process.leave
delete from {process} where process_id = :process_id;

-- name: process.forget_dead
delete from {process} where expires_at < cast((julianday('now') - 2440587.5) * 86400000 as integer) - 3600000;

-- name: process.live
select process_id, role, name, host, pid, version, topics, detail,
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - started_at) / 1000.0
from {process}
where expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
  and (:role is null or role = :role)
order by role, name, started_at;

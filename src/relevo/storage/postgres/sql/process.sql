-- Who is running. Rows expire by the database's clock; a process that stops in good order removes its own.

-- name: process.register
insert into {process} (process_id, role, name, host, pid, version, topics, detail, expires_at)
values (cast(:process_id as uuid), cast(:role as text), cast(:name as text), cast(:host as text),
        cast(:pid as integer), cast(:version as text), cast(:topics as text[]), cast(:detail as jsonb),
        clock_timestamp() + make_interval(secs => cast(:lease_s as double precision)))
on conflict (process_id) do update set detail = excluded.detail, expires_at = excluded.expires_at;

-- name: process.leave
delete from {process} where process_id = cast(:process_id as uuid);

-- name: process.forget_dead
delete from {process} where expires_at < clock_timestamp() - interval '1 hour';

-- name: process.live
select cast(process_id as text), role, name, host, pid, version, topics, cast(detail as text),
       cast(extract(epoch from clock_timestamp() - started_at) as double precision)
from {process}
where expires_at > clock_timestamp()
  and (cast(:role as text) is null or role = cast(:role as text))
order by role, name, started_at;

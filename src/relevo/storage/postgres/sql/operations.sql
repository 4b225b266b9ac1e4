-- What people did, and their long acts.

-- name: audit.add
insert into {audit} (actor, action, reason, filter, count, job_id, detail)
values (cast(:actor as text), cast(:action as text), cast(:reason as text), cast(:filter as jsonb),
        cast(:count as bigint), cast(:job_id as uuid), cast(:detail as jsonb));

-- name: job.create
insert into {job} (job_id, kind, filter, rate, total, actor, reason)
values (cast(:job_id as uuid), cast(:kind as text), cast(:filter as jsonb), cast(:rate as double precision),
        cast(:total as bigint), cast(:actor as text), cast(:reason as text));

-- name: job.unfinished
-- The one with this very filter that somebody began and did not end.
select cast(job_id as text), done, total, cast(cursor as text) from {job}
where kind = cast(:kind as text) and filter = cast(:filter as jsonb) and state = 'running'
order by started_at desc limit 1;

-- name: job.lock
select cast(job_id as text), done, total, cast(cursor as text) from {job}
where job_id = cast(:job_id as uuid) and state = 'running' for update;

-- name: job.advance
update {job} set cursor = cast(:cursor as jsonb), done = done + cast(:done as bigint), updated_at = clock_timestamp()
where job_id = cast(:job_id as uuid);

-- name: job.finish
update {job} set state = cast(:state as text), updated_at = clock_timestamp() where job_id = cast(:job_id as uuid);

-- name: job.state
select state from {job} where job_id = cast(:job_id as uuid);

-- name: job.list
select cast(job_id as text), kind, state, done, total, rate, actor, reason, started_at, updated_at
from {job} where cast(:state as text) is null or state = cast(:state as text)
order by started_at desc, job_id limit cast(:limit as integer);

-- name: job.cancel
-- A replay that failed can be taken up again, other jobs that failed are over.
update {job} set state = 'cancelled', updated_at = clock_timestamp()
where job_id = cast(:job_id as uuid) and (state in ('running', 'paused') or (state = 'failed' and kind = 'replay'))
returning kind;

-- What people did, and their long acts. JSON is written with sorted names, so that equal filters are equal texts.

-- name: audit.add
insert into {audit} (actor, action, reason, filter, count, job_id, detail)
values (:actor, :action, :reason, :filter, :count, :job_id, :detail);

-- name: job.create
insert into {job} (job_id, kind, filter, rate, total, actor, reason)
values (:job_id, :kind, :filter, :rate, :total, :actor, :reason);

-- name: job.unfinished
select job_id, done, total, cursor from {job}
where kind = :kind and filter = :filter and state = 'running'
order by started_at desc limit 1;

-- name: job.lock
select job_id, done, total, cursor from {job} where job_id = :job_id and state = 'running';

-- name: job.advance
update {job} set cursor = :cursor, done = done + :done,
  updated_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where job_id = :job_id;

-- name: job.finish
update {job} set state = :state, updated_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where job_id = :job_id;

-- name: job.state
select state from {job} where job_id = :job_id;

-- name: job.list
select job_id, kind, state, done, total, rate, actor, reason, started_at, updated_at
from {job} where :state is null or state = :state
order by started_at desc, job_id limit :limit;

-- name: job.cancel
-- A replay that failed can be taken up again, other jobs that failed are over.
update {job} set state = 'cancelled', updated_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where job_id = :job_id and (state in ('running', 'paused') or (state = 'failed' and kind = 'replay'))
returning kind;

-- Replays: what is read again, who works on it, and how far it got. The statements of jobs are beside those of the audit.

-- name: replay.page
with passed as materialized (   -- with the source `log` what was published has no marker: every cursor has passed it
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from {cursor} where (select source from {meta}) in ('log', 'wal')
)
select * from (
  (select seq, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers::text, created_at
   from {outbox} where (outcome = 'published' or outcome is null and seq <= (select seq from passed)
                         and tx < (select cast(xid::text as xid8) from passed))
     and seq > :after and seq <= :to_seq and topic = any(cast(:topics as text[]))
     and (cast(:key as bytea) is null or key = cast(:key as bytea))
     and (cast(:since as timestamptz) is null or created_at >= cast(:since as timestamptz))
     and (cast(:until as timestamptz) is null or created_at < cast(:until as timestamptz)) order by seq limit :limit)
  union all
  (select seq, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers::text, created_at
   from {archive} where outcome = 'published' and seq > :after and seq <= :to_seq and topic = any(cast(:topics as text[]))
     and (cast(:key as bytea) is null or key = cast(:key as bytea))
     and (cast(:since as timestamptz) is null or created_at >= cast(:since as timestamptz))
     and (cast(:until as timestamptz) is null or created_at < cast(:until as timestamptz)) order by seq limit :limit)
) as kept
order by seq limit :limit;

-- name: replay.count
with passed as materialized (   -- with the source `log` what was published has no marker: every cursor has passed it
  select min(high_water) as seq, min(cast(pg_snapshot_xmin(cast(snapshot as pg_snapshot))::text as bigint)) as xid
  from {cursor} where (select source from {meta}) in ('log', 'wal')
)
select type, count(*) from (
  select type from {outbox} where (outcome = 'published' or outcome is null and seq <= (select seq from passed)
                         and tx < (select cast(xid::text as xid8) from passed))
     and seq > :after and seq <= :to_seq and topic = any(cast(:topics as text[]))
     and (cast(:key as bytea) is null or key = cast(:key as bytea))
     and (cast(:since as timestamptz) is null or created_at >= cast(:since as timestamptz))
     and (cast(:until as timestamptz) is null or created_at < cast(:until as timestamptz))
  union all
  select type from {archive} where outcome = 'published' and seq > :after and seq <= :to_seq and topic = any(cast(:topics as text[]))
     and (cast(:key as bytea) is null or key = cast(:key as bytea))
     and (cast(:since as timestamptz) is null or created_at >= cast(:since as timestamptz))
     and (cast(:until as timestamptz) is null or created_at < cast(:until as timestamptz))
) as kept
group by type order by type;

-- name: replay.end
select greatest((select max(seq) from {outbox}), (select max(seq) from {archive}), 0);

-- name: replay.keep
-- What the replay has not read yet is not purged.
insert into {keep} (name, from_seq, from_time) values (:name, :from_seq, cast(:from_time as timestamptz))
on conflict (name) do update set from_seq = excluded.from_seq, from_time = excluded.from_time;

-- name: replay.keep_no_more
delete from {keep} where name = :name;

-- name: replay.next_generation
select coalesce(max(generation), 0) + 1 from {replay} where consumer = :consumer;

-- name: replay.create
insert into {replay} (job_id, consumer, mode, generation)
values (cast(:job_id as uuid), :consumer, :mode, :generation);

-- name: replay.find
select cast(j.job_id as text), j.state, cast(j.filter as text), j.rate, j.total, j.done, cast(j.cursor as text), j.reason,
       j.actor, r.consumer, r.mode, r.generation
from {job} j join {replay} r on r.job_id = j.job_id
where j.job_id = cast(:job_id as uuid);

-- name: replay.claim
update {replay} set holder = cast(:holder as uuid), expires_at = clock_timestamp() + :lease_s * interval '1 second'
where job_id = cast(:job_id as uuid)
  and (holder is null or holder = cast(:holder as uuid) or expires_at < clock_timestamp())
returning 1;

-- name: replay.release
update {replay} set holder = null, expires_at = '-infinity'
where job_id = cast(:job_id as uuid) and holder = cast(:holder as uuid);

-- name: replay.advance
-- Only by the holder: one that stood still and was replaced changes nothing.
update {job} set cursor = cast(:cursor as jsonb), done = :done, state = :state, updated_at = clock_timestamp()
where job_id = cast(:job_id as uuid)
  and state <> 'cancelled'
  and exists (select from {replay} r where r.job_id = {job}.job_id and r.holder = cast(:holder as uuid))
returning 1;

-- name: replay.fail
insert into {replay_failure} (job_id, event_id, topic, key, error_type, error)
values (cast(:job_id as uuid), cast(:event_id as uuid), :topic, cast(:key as bytea), cast(:error_type as text),
        cast(:error as text))
on conflict (job_id, event_id) do update set error_type = excluded.error_type, error = excluded.error, at = excluded.at;

-- name: replay.failures
select cast(event_id as text), topic, key, error_type, error from {replay_failure}
where job_id = cast(:job_id as uuid) order by at limit :limit;

-- name: replay.failed_ids
select cast(event_id as text) from {replay_failure} where job_id = cast(:job_id as uuid);

-- name: replay.mended
delete from {replay_failure} where job_id = cast(:job_id as uuid) and event_id = any(cast(:ids as uuid[]));

-- name: replay_keys.hold
-- Arrivals of the key queue behind from now on. Also takes up what an earlier process of the same job left: the job's
-- own lease says that it is gone, and the epoch fences it if it is not.
insert into {held_key} as k (side, consumer, topic, key, bucket, state, reason, epoch, holder, expires_at)
values ('consumer', :consumer, :topic, cast(:key as bytea), cast(:bucket as smallint), 'draining', :reason, 1,
        cast(:holder as uuid), clock_timestamp() + :lease_s * interval '1 second')
on conflict (side, consumer, topic, key) do update
set epoch = k.epoch + 1, holder = excluded.holder, expires_at = excluded.expires_at
where k.state = 'draining' and k.reason = excluded.reason
returning epoch;

-- name: replay_keys.still_ours
update {held_key} set expires_at = clock_timestamp() + :lease_s * interval '1 second'
where side = 'consumer' and consumer = :consumer and topic = :topic and key = cast(:key as bytea) and epoch = :epoch
returning 1;

-- name: replay_keys.running
-- Transactions that have asked for a key's state and may have found it live: each holds this lock to its end.
-- pid and what its session says of itself: null for other roles' sessions, unless this one may see them.
select distinct l.virtualtransaction, l.pid, a.usename::text, a.application_name, a.state,
       cast(extract(epoch from clock_timestamp() - a.xact_start) as double precision)
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and l.mode = 'RowShareLock' and l.granted and l.pid <> pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
  and l.relation = cast(cast(:table as text) as regclass);

-- name: replay_keys.live
-- Of one replay: those behind which nothing arrived.
delete from {held_key} k
where side = 'consumer' and consumer = :consumer and state = 'draining' and reason = :reason
  and (cast(:holder as uuid) is null or holder = cast(:holder as uuid))
  and not exists (select from {held_message} m
                  where (m.side, m.consumer, m.topic, m.held_key) = (k.side, k.consumer, k.topic, k.key))
returning topic, key;

-- name: replay_keys.lock
select topic, key from {held_key}
where side = 'consumer' and consumer = :consumer and state = 'draining' and reason = :reason
  and (cast(:holder as uuid) is null or holder = cast(:holder as uuid))
order by topic, key for update;

-- name: replay_keys.let_go
-- The others: due at once, for the consumer's processes.
update {held_key} set holder = null, expires_at = '-infinity', epoch = epoch + 1
where side = 'consumer' and consumer = :consumer and state = 'draining' and reason = :reason
  and (cast(:holder as uuid) is null or holder = cast(:holder as uuid))
returning topic, key;

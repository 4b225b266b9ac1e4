-- Replays: what is read again, who works on it, and how far it got. The statements of jobs are beside those of the audit.

-- name: replay.page
select seq, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers, created_at
from (
  select * from (select seq, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers, created_at
   from {outbox} where (outcome = 'published' or outcome is null and (select source from {meta}) = 'log'
                         and seq <= (select min(high_water) from {cursor}))
     and seq > :after and seq <= :to_seq and topic in (select value from json_each(:topics))
     and (:key is null or key = :key) and (:since is null or created_at >= :since)
     and (:until is null or created_at < :until) order by seq limit :limit)
  union all
  select * from (select seq, event_id, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
       aggregate_version, payload, content_type, headers, created_at
   from {archive} where outcome = 'published' and seq > :after and seq <= :to_seq and topic in (select value from json_each(:topics))
     and (:key is null or key = :key) and (:since is null or created_at >= :since)
     and (:until is null or created_at < :until) order by seq limit :limit))
order by seq limit :limit;

-- name: replay.count
select type, count(*) from (
  select type from {outbox} where (outcome = 'published' or outcome is null and (select source from {meta}) = 'log'
                         and seq <= (select min(high_water) from {cursor}))
     and seq > :after and seq <= :to_seq and topic in (select value from json_each(:topics))
     and (:key is null or key = :key) and (:since is null or created_at >= :since)
     and (:until is null or created_at < :until)
  union all
  select type from {archive} where outcome = 'published' and seq > :after and seq <= :to_seq and topic in (select value from json_each(:topics))
     and (:key is null or key = :key) and (:since is null or created_at >= :since)
     and (:until is null or created_at < :until)
) as kept
group by type order by type;

-- name: replay.end
select max(coalesce((select max(seq) from {outbox}), 0), coalesce((select max(seq) from {archive}), 0));

-- name: replay.keep
insert into {keep} (name, from_seq, from_time) values (:name, :from_seq, :from_time)
on conflict (name) do update set from_seq = excluded.from_seq, from_time = excluded.from_time;

-- name: replay.keep_no_more
delete from {keep} where name = :name;

-- name: replay.next_generation
select coalesce(max(generation), 0) + 1 from {replay} where consumer = :consumer;

-- name: replay.create
insert into {replay} (job_id, consumer, mode, generation) values (:job_id, :consumer, :mode, :generation);

-- name: replay.find
select j.job_id, j.state, j.filter, j.rate, j.total, j.done, j.cursor, j.reason, j.actor, r.consumer, r.mode, r.generation
from {job} j join {replay} r on r.job_id = j.job_id
where j.job_id = :job_id;

-- name: replay.claim
update {replay} set holder = :holder, expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where job_id = :job_id and (holder is null or holder = :holder or expires_at < cast((julianday('now') - 2440587.5) * 86400000 as integer))
returning 1;

-- name: replay.release
update {replay} set holder = null, expires_at = 0 where job_id = :job_id and holder = :holder;

-- name: replay.advance
update {job} set cursor = :cursor, done = :done, state = :state,
  updated_at = cast((julianday('now') - 2440587.5) * 86400000 as integer)
where job_id = :job_id and state <> 'cancelled' and exists (select 1 from {replay} r where r.job_id = {job}.job_id and r.holder = :holder)
returning 1;

-- name: replay.fail
insert into {replay_failure} (job_id, event_id, topic, key, error_type, error)
values (:job_id, :event_id, :topic, :key, :error_type, :error)
on conflict (job_id, event_id) do update set error_type = excluded.error_type, error = excluded.error, at = excluded.at;

-- name: replay.failures
select event_id, topic, key, error_type, error from {replay_failure} where job_id = :job_id order by at limit :limit;

-- name: replay.failed_ids
select event_id from {replay_failure} where job_id = :job_id;

-- name: replay.mended
delete from {replay_failure} where job_id = :job_id and event_id in (select value from json_each(:ids));

-- name: replay_keys.hold
insert into {held_key} (side, consumer, topic, key, bucket, state, reason, epoch, holder, expires_at)
values ('consumer', :consumer, :topic, :key, :bucket, 'draining', :reason, 1, :holder,
        cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer))
on conflict (side, consumer, topic, key) do update
set epoch = epoch + 1, holder = excluded.holder, expires_at = excluded.expires_at
where state = 'draining' and reason = excluded.reason
returning epoch;

-- name: replay_keys.still_ours
update {held_key} set expires_at = cast((julianday('now') - 2440587.5) * 86400000 + :lease_s * 1000 as integer)
where side = 'consumer' and consumer = :consumer and topic = :topic and key = :key and epoch = :epoch
returning 1;

-- name: replay_keys.live
-- Of one replay: those behind which nothing arrived.
delete from {held_key}
where side = 'consumer' and consumer = :consumer and state = 'draining' and reason = :reason
  and (:holder is null or holder = :holder)
  and not exists (select 1 from {held_message} m
                  where (m.side, m.consumer, m.topic, m.held_key)
                      = ({held_key}.side, {held_key}.consumer, {held_key}.topic, {held_key}.key))
returning topic, key;

-- name: replay_keys.lock
select topic, key from {held_key}
where side = 'consumer' and consumer = :consumer and state = 'draining' and reason = :reason
  and (:holder is null or holder = :holder)
order by topic, key;

-- name: replay_keys.let_go
-- The others: due at once, for the consumer's processes.
update {held_key} set holder = null, expires_at = 0, epoch = epoch + 1
where side = 'consumer' and consumer = :consumer and state = 'draining' and reason = :reason
  and (:holder is null or holder = :holder)
returning topic, key;

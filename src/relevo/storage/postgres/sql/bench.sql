-- What `relevo bench` asks and removes.

-- name: bench.facts
select name, setting from pg_settings
where name in ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers')
order by name;

-- name: bench.newest
select coalesce(max(seq), 0) from {outbox};

-- name: bench.remove
-- Of the bench's own topic, above the newest number that was there before it: nothing else is looked at.
with gone as (
  delete from {outbox} where seq in (
    select seq from {outbox} where seq > :since and topic = :topic order by seq limit :limit)
  returning 1
)
select count(*) from gone;

-- The append, on the caller's connection. created_at is this machine's clock.

-- name: append.one
insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                      aggregate_version, payload, content_type, headers)
values (:event_id, :bucket, :kind, :topic, :key, :type, :schema_version, :aggregate_type, :aggregate_id,
        :aggregate_version, :payload, :content_type, :headers);

-- name: append.find
-- As on PostgreSQL: seq is walked from its end to the first row older than the id can be.
select 1 from {outbox}
where event_id = :event_id
  and seq > coalesce((select seq from {outbox}
                      where created_at < min(:since, cast((julianday('now') - 2440587.5) * 86400000 as integer)) - 600000
                      order by seq desc limit 1), -1)
limit 1;

-- name: append.is_there
-- SQLite has no error code of its own for a missing table, so the question is asked instead of reading an error's text.
select 1 from sqlite_master where type = 'table' and name = :name;

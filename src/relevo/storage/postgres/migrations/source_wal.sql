-- The source `wal` reads inserts into the outbox from the write-ahead log: it needs no index, but a publication. One
-- that is there is left as it is, unless a move that did not end left it (`wal.emit`); the slot is made afterwards, in a transaction of its own.
do $relevo$
declare
  name text := '{prefix}' || left(regexp_replace(lower(current_database()), '[^a-z0-9_]', '_', 'g'), 14) || '_'
               || left(md5(current_database() || '.' || '{schema}'), 8);
  columns text := ' (seq, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,'
                  ' aggregate_version, payload, content_type, headers, created_at)';
begin
  if current_setting('server_version_num')::integer < 140000 then
    raise exception 'relevo: the source wal needs PostgreSQL 14 or later' using errcode = 'feature_not_supported';
  end if;
  if current_setting('server_version_num')::integer < 150000 then
    columns := '';   -- before 15 a publication has all columns
  end if;
  if not exists (select from pg_publication where pubname = name) then
    execute format('create publication %I for table {outbox}', name) || columns
            || $with$ with (publish = 'insert', publish_via_partition_root = true)$with$;
  elsif exists (select from pg_publication where pubname = name and pubtruncate and not pubdelete) then
    execute format('alter publication %I set (publish = ''insert'')', name);
  end if;
end
$relevo$;

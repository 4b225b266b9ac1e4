-- The append, on the caller's connection. Casts say the types, so that any driver and any cursor can run it; ids, times
-- and headers go through text because an application may have put codecs of its own on uuid, timestamptz and jsonb. created_at is this database's clock.

-- name: append.one
insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                      aggregate_version, payload, content_type, headers)
values (cast(cast(:event_id as text) as uuid), cast(:bucket as smallint), cast(:kind as text), cast(:topic as text),
        cast(:key as bytea), cast(:type as text), cast(:schema_version as integer), cast(:aggregate_type as text),
        cast(:aggregate_id as text), cast(:aggregate_version as bigint), cast(:payload as bytea),
        cast(:content_type as text), cast(cast(:headers as text) as jsonb));

-- name: append.many
-- Arrays: one text, and so one plan, for any number of rows. seq is given in the order of the arrays.
insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                      aggregate_version, payload, content_type, headers)
select event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, cast(headers as jsonb)
from unnest(cast(cast(:event_id as text[]) as uuid[]), cast(:bucket as smallint[]), cast(:kind as text[]), cast(:topic as text[]),
            cast(:key as bytea[]), cast(:type as text[]), cast(:schema_version as integer[]),
            cast(:aggregate_type as text[]), cast(:aggregate_id as text[]), cast(:aggregate_version as bigint[]),
            cast(:payload as bytea[]), cast(:content_type as text[]), cast(:headers as text[]))
     with ordinality as given (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                               aggregate_version, payload, content_type, headers, place)
order by place;

-- name: append.copy
-- The columns stand in the order of appending.row(). COPY asks for the insert right only, and takes seq row by row.
copy {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
               aggregate_version, payload, content_type, headers) from stdin;

-- name: append.find
-- There is no index on event_id, since every writer would pay for it. created_at grows with seq but for the overlap of
-- transactions, so the primary key is walked from its end to the first row older than the id can be.
select 1 from {outbox}
where event_id = cast(cast(:event_id as text) as uuid)
  and seq > coalesce((select seq from {outbox}
                      where created_at < least(cast(cast(:since as text) as timestamptz), clock_timestamp()) - interval '10 minutes'
                      order by seq desc limit 1), -9223372036854775808)
limit 1;

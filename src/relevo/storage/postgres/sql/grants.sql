-- What each duty needs, and nothing else. A column list on insert keeps writers from settling their own rows; the
-- identity column's sequence needs no grant. `for share` and `for update` ask for an update right on the row.

-- name: grants.writer
-- Appends through the library, the table or relevo_add; asks whether an id was written; never reads a payload.
grant insert (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
              payload, content_type, headers, created_at) on {outbox} to :role;
grant select (seq, event_id, created_at) on {outbox} to :role;
grant execute on function {bucket_of}(bytea, uuid), {uuid7}(),
  {add}(text, text, jsonb, text, jsonb, integer, bigint, text, text, text) to :role;
grant insert (name, key, idempotency_key, data, event_id, consumer), select (name, key) on {effect} to :role;
grant insert (due_at, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
              aggregate_version, payload, content_type, headers, created_at) on {scheduled} to :role;
grant select (event_id), delete on {scheduled} to :role

-- name: grants.relay
-- Reads and settles the outbox, shares lanes, holds keys, and writes what was scheduled when it is due. Deletes no message:
-- a relay that shall purge as well is granted `keeper` too.
grant select on {meta}, {outbox}, {pause}, {topic} to :role;
grant insert (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
              payload, content_type, headers) on {outbox} to :role;
grant select, update, delete on {scheduled} to :role;
grant insert on {audit} to :role;
grant select, insert, update on {duty} to :role;
grant update (settled_at, outcome) on {outbox} to :role;
grant select, update on {lane} to :role;
grant select, insert, update, delete on {cursor} to :role;
grant select, update on {wal_position} to :role;
grant select, insert, update, delete on {process}, {destination}, {held_key}, {held_message} to :role

-- name: grants.keeper
-- Retention, for relays on their schedule and for `relevo purge`: deletes or archives what is settled and old.
grant select on {meta}, {cursor}, {keep}, {held_message}, {process}, {group_lane} to :role;
grant select, delete on {outbox}, {inbox}, {journal} to :role;
grant update (taken_at) on {journal} to :role;
grant delete on {process} to :role;
grant select, insert on {archive} to :role;
grant select, insert, update on {duty} to :role;
grant insert on {audit} to :role;
grant select (job_id, kind, state) on {job} to :role;
grant select, delete on {effect} to :role;
grant execute on function {outbox_partitions}(), {cut_outbox}(integer, bigint), {prove_outbox_cut}(integer),
  {drop_outbox_partition}(text, timestamptz, integer) to :role

-- name: grants.consumer
-- Inbox, journal and held keys; nothing of the outbox. A consumer that emits is a writer as well.
grant select on {meta}, {pause} to :role;
grant select, insert, update, delete on {inbox}, {journal}, {process}, {held_key}, {held_message} to :role;
grant select, insert, update, delete on {dead_letter} to :role;
grant select, insert, update on {duty} to :role;
grant select, insert, update on {effect} to :role

-- name: grants.reader
-- Reads the outbox for a group of consumers, where there is no broker (`broker.url = "postgresql://…"`). Beside `consumer`,
-- which is for the database with the inbox.
grant select on {meta}, {outbox}, {topic}, {lane} to :role;
grant select, insert, update on {group}, {group_lane} to :role;
grant select, insert, update, delete on {group_member} to :role

-- name: grants.operator
-- Looks at everything, frees or discards held keys. To see other roles' long transactions it also needs
-- pg_read_all_stats, which only an administrator can grant.
grant select on {pause}, {duty}, {keep}, {archive}, {archive_readable} to :role;
grant insert, delete on {pause} to :role;
grant select on {meta}, {migration}, {outbox}, {scheduled}, {lane}, {cursor}, {wal_position}, {process}, {destination},
  {held_key}, {held_message}, {inbox}, {journal}, {audit}, {job}, {outbox_readable}, {held_readable} to :role;
grant execute on function {as_text}(bytea), {bucket_of}(bytea, uuid), {outbox_partitions}() to :role;
grant update, delete on {held_key} to :role;
grant insert, update, delete on {held_message} to :role;
grant insert on {inbox}, {audit} to :role;
grant insert, update on {job}, {duty} to :role;
grant select on {dead_letter} to :role;
grant select, update on {effect} to :role;
grant select, insert, update, delete on {replay}, {replay_failure} to :role;
grant insert, update, delete on {keep} to :role;
grant select, delete on {group} to :role;
grant select on {group_member}, {group_lane} to :role;
grant select, insert on {topic} to :role

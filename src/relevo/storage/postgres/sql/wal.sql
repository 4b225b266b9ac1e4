-- The source `wal`: where it stands, who reads, and what the server says of slot and publication. LSNs travel as bigint.

-- name: wal.names
-- A slot's name is the cluster's, so it says which database and which tables it is for. The publication has the same one.
select '{prefix}' || left(regexp_replace(lower(current_database()), '[^a-z0-9_]', '_', 'g'), 14) || '_'
       || left(md5(current_database() || '.' || '{schema}'), 8);

-- name: wal.server
-- Columns of newer versions are asked for by name, so that one text does for all of them.
select current_database(), current_user, current_setting('server_version_num')::integer, current_setting('wal_level'),
       pg_is_in_recovery(),
       coalesce((select rolreplication or rolsuper from pg_roles where rolname = current_user), false),
       current_setting('max_replication_slots')::integer, (select count(*) from pg_replication_slots)::integer,
       (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.oid = to_regclass('{outbox}')),
       (select c.relname from pg_class c where c.oid = to_regclass('{outbox}')),
       p.pubinsert, p.pubviaroot,
       exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = to_regclass('{outbox}'))
         or coalesce(p.puballtables, false),
       coalesce(pg_has_role(p.pubowner, 'usage'), true)
from (select 1) as one
left join pg_publication p on p.pubname = :slot;

-- name: wal.slot
select s.plugin, s.database, s.active_pid, (s.confirmed_flush_lsn - '0/0')::bigint, s.wal_status,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
                case when (to_jsonb(s) ->> 'conflicting')::boolean then 'conflicting' end),
       (pg_current_wal_insert_lsn() - s.restart_lsn)::bigint, s.safe_wal_size
from pg_replication_slots s where s.slot_name = :slot;

-- name: wal.slots
select s.slot_name, s.database, s.active_pid, s.wal_status, (pg_current_wal_insert_lsn() - s.restart_lsn)::bigint,
       s.safe_wal_size
from pg_replication_slots s where s.plugin = 'pgoutput' order by s.slot_name;

-- name: wal.position
select system_id, timeline, (commit_lsn - '0/0')::bigint, ordinal, epoch,
       case when expires_at > clock_timestamp() then holder end
from {wal_position} where slot = :slot;

-- name: wal.create_slot
-- In a transaction of its own that wrote nothing. Waits until every transaction that runs now has ended.
select (lsn - '0/0')::bigint from pg_create_logical_replication_slot(:slot, 'pgoutput');

-- name: wal.create_failover_slot
-- A standby that synchronizes slots takes this one over.
select (lsn - '0/0')::bigint from pg_create_logical_replication_slot(:slot, 'pgoutput', false, false, true);

-- name: wal.drop_slot
select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = :slot;

-- name: wal.terminate
select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = :slot and active_pid is not null;

-- name: wal.terminate_former
-- If the lease is ours, whoever still reads the slot is a process that stands still.
select pg_terminate_backend(s.active_pid)
from pg_replication_slots s join {wal_position} p on p.slot = s.slot_name
where s.slot_name = :slot and s.active_pid is not null and p.epoch = :epoch and p.holder = :holder;

-- name: wal.system
select system_identifier::text, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer
from pg_control_system();

-- name: wal.begin
-- A new slot begins here, whatever an older one of that name stood at; nobody holds it.
insert into {wal_position} (slot, system_id, timeline, commit_lsn, ordinal)
values (:slot, :system_id, :timeline, '0/0'::pg_lsn + cast(:lsn as numeric), 0)
on conflict (slot) do update
set system_id = excluded.system_id, timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = 0,
    epoch = {wal_position}.epoch + 1, holder = null, expires_at = '-infinity';

-- name: wal.forget
delete from {wal_position} where slot = :slot;

-- name: wal.lease
-- Free, expired or ours already: ours until :lease_s from now. No row: somebody else's, or there is no such slot here.
update {wal_position}
set epoch = epoch + case when holder = :holder then 0 else 1 end, holder = :holder,
    expires_at = clock_timestamp() + :lease_s * interval '1 second'
where slot = :slot and (holder is null or holder = :holder or expires_at < clock_timestamp())
returning epoch;

-- name: wal.leave
update {wal_position} set holder = null, epoch = epoch + 1, expires_at = '-infinity'
where slot = :slot and holder = :holder and epoch = :epoch;

-- name: wal.save
-- Locks the row against a takeover, and never goes back. No row: the lease is gone, or the position was moved by others.
update {wal_position} set commit_lsn = '0/0'::pg_lsn + cast(:lsn as numeric), ordinal = :ordinal
where slot = :slot and holder = :holder and epoch = :epoch
  and (commit_lsn, ordinal) <= ('0/0'::pg_lsn + cast(:lsn as numeric), cast(:ordinal as bigint))
returning 1;

-- name: wal.timeline
update {wal_position} set timeline = :timeline where slot = :slot and holder = :holder and epoch = :epoch;

-- name: wal.hold_keys
insert into {held_key} (side, topic, key, alone, bucket, state, reason, error_type)
select 'relay', topic, key, alone, bucket, state, reason, code
from unnest(cast(:topics as text[]), cast(:keys as bytea[]), cast(:alones as boolean[]), cast(:buckets as smallint[]),
            cast(:states as text[]), cast(:reasons as text[]), cast(:codes as text[]))
     as given (topic, key, alone, bucket, state, reason, code)
order by topic, key
on conflict (side, consumer, topic, key) do nothing;

-- name: wal.lock_keys
select k.topic, k.key from {held_key} k
join unnest(cast(:topics as text[]), cast(:keys as bytea[])) as given (topic, key) using (topic, key)
where k.side = 'relay' and k.consumer = ''
order by k.topic, k.key for update of k;

-- name: wal.hold
-- Complete copies, in the order of the arrays. A queue is drained by position: what comes later in the stream never
-- stands before what is there already, whatever its seq is.
insert into {held_message} (side, topic, held_key, event_id, position, bucket, kind, key, type, schema_version,
  aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
select 'relay', topic, held_key, event_id,
       greatest(position, (select max(m.position) from {held_message} m
                           where m.side = 'relay' and m.consumer = '' and m.topic = given.topic
                             and m.held_key = given.held_key),
                max(position) over (partition by topic, held_key order by place)),
       bucket, kind, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version, payload, content_type,
       cast(headers as jsonb), created_at
from unnest(cast(:topics as text[]), cast(:held_keys as bytea[]), cast(:event_ids as uuid[]), cast(:positions as bigint[]),
            cast(:buckets as smallint[]), cast(:kinds as text[]), cast(:keys as bytea[]), cast(:types as text[]),
            cast(:schema_versions as integer[]), cast(:aggregate_types as text[]), cast(:aggregate_ids as text[]),
            cast(:aggregate_versions as bigint[]), cast(:payloads as bytea[]), cast(:content_types as text[]),
            cast(:headers as text[]), cast(:created_ats as timestamptz[]))
     with ordinality as given (topic, held_key, event_id, position, bucket, kind, key, type, schema_version,
                               aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers,
                               created_at, place)
order by place
on conflict (side, consumer, topic, held_key, event_id) do nothing;

-- name: wal.snapshot
select pg_current_snapshot()::text;

-- name: wal.high_water
-- After the snapshot: whatever it shows had committed before this point of the WAL.
select (pg_current_wal_insert_lsn() - '0/0')::bigint, coalesce((select max(seq) from {outbox}), 0);

-- name: wal.passed
-- What the table needs to know: every row up to high_water that is visible in the snapshot is settled. Retention may take
-- it, and if the slot is lost, the rest is what has to be sent from the table.
insert into {cursor} (lane, topic_group, snapshot, high_water)
select lane, '*', :snapshot, :high_water from {lane}
on conflict (lane, topic_group) do update
set snapshot = excluded.snapshot, high_water = excluded.high_water, window_snapshot = null, window_position = null,
    saved_at = clock_timestamp();

-- name: wal.emit
-- One round trip: the events in the order of the array, and whether anybody reads them. Without a slot they would be lost
-- without a word. Once the source was moved, the publication publishes nothing; before it is, truncations as well (which
-- nobody looks at): the slot of a move that is not over may go as it came.
select count(pg_logical_emit_message(true, :channel, content)),
       (select count(*) from pg_replication_slots s join pg_publication p on p.pubname = s.slot_name
        where s.slot_name = '{prefix}' || left(regexp_replace(lower(current_database()), '[^a-z0-9_]', '_', 'g'), 14)
                            || '_' || left(md5(current_database() || '.' || '{schema}'), 8)
          and s.plugin = 'pgoutput' and s.wal_status is distinct from 'lost'
          and p.pubinsert and not (p.pubtruncate and not p.pubdelete))
from (select content from unnest(cast(:contents as bytea[])) with ordinality as given (content, place) order by place)
     as ordered;

-- name: wal.recover
-- From the table, in seq order, one batch: complete copies of what is neither settled nor passed by the stream as far as
-- the table was told. Their keys are held until a relay has drained them, so that nothing newer gets past them.
with passed as (
  select snapshot::pg_snapshot as snapshot, high_water from {cursor}
  where topic_group = '*' order by high_water limit 1
), batch as materialized (
  select o.*, coalesce(o.key, uuid_send(o.event_id)) as held_key from {outbox} o
  where o.seq > :after and o.settled_at is null
    and not coalesce((select o.seq <= p.high_water and pg_visible_in_snapshot(o.tx, p.snapshot) from passed p), false)
  order by o.seq limit :limit
), keys as (
  insert into {held_key} (side, topic, key, alone, bucket, state, reason)
  select distinct 'relay', topic, held_key, key is null, bucket, 'waiting', 'read from the table: the slot was made anew'
  from batch
  on conflict (side, consumer, topic, key) do nothing
), copies as (
  insert into {held_message} (side, topic, held_key, event_id, position, bucket, kind, key, type, schema_version,
    aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
  select 'relay', topic, held_key, event_id, seq, bucket, kind, key, type, schema_version, aggregate_type, aggregate_id,
         aggregate_version, payload, content_type, headers, created_at
  from batch order by seq
  on conflict (side, consumer, topic, held_key, event_id) do nothing
)
select max(seq), count(*) from batch;

-- name: wal.drop_publication
do $relevo$
begin
  execute format('drop publication if exists %I',
    '{prefix}' || left(regexp_replace(lower(current_database()), '[^a-z0-9_]', '_', 'g'), 14) || '_'
    || left(md5(current_database() || '.' || '{schema}'), 8));
end
$relevo$;

-- Moving into and out of the source `wal` (docs/how-to/move-between-sources.md). LSNs travel as bigint.

-- name: moving_wal.take
-- Whoever reads the slot, or wakes up with an old lease, cannot move the position any more: its epoch is gone.
update {wal_position}
set epoch = epoch + case when holder = cast(:holder as uuid) then 0 else 1 end, holder = cast(:holder as uuid),
    expires_at = clock_timestamp() + :lease_s * interval '1 second'
where slot = :slot and (holder is null or holder = cast(:holder as uuid) or expires_at < clock_timestamp())
returning epoch, (commit_lsn - '0/0')::bigint, ordinal;

-- name: moving_wal.flush
-- Its commit is on disk when it returns, and with it everything that committed before: a slot sends nothing else.
select set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, 'relevo.flush', '');

-- name: moving_wal.flushed
select (pg_current_wal_flush_lsn() - '0/0')::bigint;

-- name: moving_wal.newest
select pg_current_xact_id()::text::bigint;

-- name: moving_wal.xmin
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint;

-- name: moving_wal.top
select coalesce(max(seq), 0) from {outbox};

-- name: moving_wal.page
select max(seq), count(*) from (
  select seq from {outbox} where settled_at is null and seq > cast(:after as bigint) and seq <= cast(:top as bigint)
  order by seq limit cast(:limit as integer)) page;

-- name: moving_wal.mark
-- What the snapshot shows was settled, but for what the stream had not delivered. As their time that of their creation.
update {outbox} o set settled_at = created_at, outcome = 'published'
where o.settled_at is null and o.seq > cast(:after as bigint) and o.seq <= cast(:last as bigint)
  and pg_visible_in_snapshot(o.tx, cast(:snapshot as pg_snapshot))
  and not exists (select from unnest(cast(:open as bigint[])) as left_over (seq) where left_over.seq = o.seq)
returning 1;

-- name: moving_wal.open_mark
-- What `mark` has not settled of what the snapshot shows.
select seq from {outbox}
where settled_at is null and seq > cast(:after as bigint) and pg_visible_in_snapshot(tx, cast(:snapshot as pg_snapshot))
order by seq limit cast(:limit as integer);

-- name: moving_wal.open_log
-- What no cursor of `log` has passed of what the snapshot shows. It stands above the slowest number, or belongs to a
-- transaction that the oldest cursor has not seen end.
with at as materialized (
  select lane, topic_group, high_water, cast(snapshot as pg_snapshot) as snapshot, window_position,
         cast(window_snapshot as pg_snapshot) as late
  from {cursor}
), least as materialized (
  select case when count(*) filter (where topic_group = '*') < (select lanes from {meta}) then 0
              else min(high_water) end as high_water,
         coalesce(min(pg_snapshot_xmin(snapshot)::text::bigint), 0)::text::xid8 as xid
  from at
), page as materialized (
  select seq, tx, topic, bucket % (select lanes from {meta}) as lane from {outbox}
  where settled_at is null and seq > cast(:after as bigint) and seq > (select high_water from least)
  union
  select seq, tx, topic, bucket % (select lanes from {meta}) as lane from {outbox}
  where settled_at is null and seq > cast(:after as bigint) and tx >= (select xid from least)
)
select p.seq from page p
left join at on at.lane = p.lane and at.topic_group = coalesce(
  (select g.topic_group from at g where g.lane = p.lane and g.topic_group = p.topic), '*')
where pg_visible_in_snapshot(p.tx, cast(:snapshot as pg_snapshot))
  and not coalesce(p.seq <= at.high_water and (pg_visible_in_snapshot(p.tx, at.snapshot)
        or at.late is not null and p.seq <= at.window_position and pg_visible_in_snapshot(p.tx, at.late)), false)
order by p.seq limit cast(:limit as integer);

-- name: moving_wal.keys
-- Held, or locked if they were: nobody may find the queue empty before the copies are in it.
insert into {held_key} (side, topic, key, alone, bucket, state, reason)
select distinct on (o.topic, coalesce(o.key, uuid_send(o.event_id)))
       'relay', o.topic, coalesce(o.key, uuid_send(o.event_id)), o.key is null, o.bucket, 'waiting',
       'read from the table: the source was moved'
from {outbox} o where o.seq = any (cast(:seqs as bigint[]))
order by 2, 3
on conflict (side, consumer, topic, key) do update set state = {held_key}.state;

-- name: moving_wal.copy
insert into {held_message} (side, topic, held_key, event_id, position, bucket, kind, key, type, schema_version,
  aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at)
select 'relay', topic, coalesce(key, uuid_send(event_id)), event_id, seq, bucket, kind, key, type, schema_version,
       aggregate_type, aggregate_id, aggregate_version, payload, content_type, headers, created_at
from {outbox} where seq = any (cast(:seqs as bigint[])) and settled_at is null
order by seq
on conflict (side, consumer, topic, held_key, event_id) do nothing;

-- name: moving_wal.say
select set_config('relevo.publish', cast(:what as text), true);

-- name: moving_wal.publish
-- What was said in the same transaction: by it an append without a table sees whether anybody reads it (`wal.emit`).
do $relevo$
declare
  name text := '{prefix}' || left(regexp_replace(lower(current_database()), '[^a-z0-9_]', '_', 'g'), 14) || '_'
               || left(md5(current_database() || '.' || '{schema}'), 8);
begin
  if exists (select from pg_publication where pubname = name) then
    execute format('alter publication %I set (publish = %L)', name, current_setting('relevo.publish'));
  end if;
end
$relevo$;

-- name: moving_wal.share_lanes
-- Nobody can take a lane until this transaction ends.
select lane, epoch, holder is not null and expires_at > clock_timestamp() from {lane} order by lane for share;

-- name: moving_wal.older
-- Sessions of this database that look at it as it was before that xid was drawn, and may emit by what they see. Everybody
-- may see this much of them. Vacuum is nobody's.
select count(*) from pg_stat_activity
where datname = current_database() and usesysid is not null and pid <> pg_backend_pid()
  and coalesce(backend_type, '') <> 'walsender'
  and age(backend_xmin) >= age(cast(cast(cast(:xid as text) as xid8) as xid));

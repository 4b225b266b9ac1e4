-- Retention: small batches, each a transaction of its own, along a primary key. What is unsettled, held, or needed by a
-- job is never touched.

-- name: purge.now
select (julianday('now') - 2440587.5) * 86400.0;

-- part: purge.settled_at
-- A row is settled by its marker, or, with the source `log`, where every cursor has passed it.
coalesce(settled_at, case when seq <= (select min(high_water) from {cursor})
                                                and (select source from {meta}) = 'log' then created_at end)

-- part: purge.young
-- Whether all of a page is too young, and so all behind it: rows from the future, by a wrong clock or by hand, say nothing.
coalesce(min(created_at) filter (where created_at < (julianday('now') - 2440587.5 + 1) * 86400000)
                >= :before_s * 1000, 0)

-- part: purge.free
-- Of a `page` of the outbox: what nobody else needs.
seq < coalesce((select min(from_seq) from {keep}), 9223372036854775807)
  and coalesce(created_at < (select min(from_time) from {keep}), 1)
  and not (outcome = 'held' and exists (select 1 from {held_message} m
                                        where m.side = 'relay' and m.event_id = page.event_id))

-- name: purge.count
-- One page from :after on: its last seq and size, how much of it may go, and whether all of it is too young.
select max(seq), count(*), coalesce(sum(settled_at is not null and settled_at < :before_s * 1000
         and {part:purge.free}), 0),
       {part:purge.young}
from (select seq, event_id, created_at, outcome,
             {part:purge.settled_at} as settled_at
      from {outbox} where seq > :after order by seq limit :limit) as page;

-- name: purge.archive
insert into {archive} (seq, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                       aggregate_version, payload, content_type, headers, created_at, settled_at, outcome)
select seq, event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id, aggregate_version,
       payload, content_type, headers, created_at, coalesce(settled_at, created_at), coalesce(outcome, 'published')
from {outbox} page
where seq > :after and seq <= :last
  and {part:purge.settled_at} < :before_s * 1000
  and {part:purge.free}
on conflict (seq) do nothing;

-- name: purge.delete
delete from {outbox} as page
where seq > :after and seq <= :last
  and {part:purge.settled_at} < :before_s * 1000
  and {part:purge.free};

-- name: purge.consumers
with recursive names (consumer) as (
  select min(consumer) from {inbox}
  union all
  select (select min(i.consumer) from {inbox} i where i.consumer > n.consumer) from names n where n.consumer is not null
)
select consumer from names where consumer is not null;

-- name: purge.inbox_count
with page as materialized (
  select event_id, generation, processed_at, outcome from {inbox}
  where consumer = :consumer and (event_id, generation) > (:after, :generation)
  order by event_id, generation limit :limit
)
select (select event_id from page order by event_id desc, generation desc limit 1),
       (select generation from page order by event_id desc, generation desc limit 1), count(*),
       coalesce(sum(processed_at < :before_s * 1000 and outcome <> 'discarded' and not exists (
         select 1 from {held_message} m
         where m.side = 'consumer' and m.consumer = :consumer and m.event_id = page.event_id)), 0)
from page;

-- name: purge.inbox_delete
delete from {inbox}
where consumer = :consumer and (event_id, generation) > (:after, :generation)
  and (event_id, generation) <= (:last, :last_generation) and processed_at < :before_s * 1000
  and outcome <> 'discarded'
  and not exists (select 1 from {held_message} m
                  where m.side = 'consumer' and m.consumer = :consumer and m.event_id = {inbox}.event_id);

-- name: purge.effects_count
-- Done long ago, of a message that is held nowhere; nothing at all while a replay runs or waits to go on, since it may
-- record the same effects again.
select max(effect_id), count(*), coalesce(sum(state = 'done' and finished_at < :before_s * 1000
         and not exists (select 1 from {held_message} m where m.event_id = page.event_id)
         and not exists (select 1 from {job} j where j.kind = 'replay' and j.state in ('running', 'paused'))), 0),
       {part:purge.young}
from (select effect_id, state, event_id, created_at, finished_at from {effect}
      where effect_id > :after order by effect_id limit :limit) as page;

-- name: purge.effects_delete
delete from {effect}
where effect_id > :after and effect_id <= :last and state = 'done' and finished_at < :before_s * 1000
  and not exists (select 1 from {held_message} m where m.event_id = {effect}.event_id)
  and not exists (select 1 from {job} j where j.kind = 'replay' and j.state in ('running', 'paused'));

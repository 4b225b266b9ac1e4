-- What `relevo status` shows. Counts stop at :cap; ages are in seconds, by this machine's clock.

-- name: status.pending
select count(*) from (select 1 from {outbox} where settled_at is null order by seq limit :cap);

-- name: status.oldest
select (cast((julianday('now') - 2440587.5) * 86400000 as integer) - created_at) / 1000.0
from {outbox} where settled_at is null order by seq limit 1;

-- name: status.lanes
select holder, count(*), min(epoch), max(epoch) from {lane}
where holder is not null and expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
group by holder order by 1;

-- name: status.destinations
select d.topic, min(d.reason), (cast((julianday('now') - 2440587.5) * 86400000 as integer) - min(d.since)) / 1000.0
from {destination} d join {process} p on p.process_id = d.process_id
where p.expires_at > cast((julianday('now') - 2440587.5) * 86400000 as integer)
group by d.topic order by d.topic;

-- name: status.held
with behind as (
  select side, consumer, topic, held_key, count(*) as messages
  from (select side, consumer, topic, held_key from {held_message} limit :cap)
  group by side, consumer, topic, held_key
)
select k.side, k.consumer, k.topic, k.state, count(*), coalesce(sum(b.messages), 0),
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - min(k.since)) / 1000.0
from {held_key} k
left join behind b on b.side = k.side and b.consumer = k.consumer and b.topic = k.topic and b.held_key = k.key
group by k.side, k.consumer, k.topic, k.state order by 1, 2, 3, 4;

-- name: status.scheduled
select count(*),
       ((select min(due_at) from {scheduled} where due_at < 253370764800000) - cast((julianday('now') - 2440587.5) * 86400000 as integer)) / 1000.0
from (select 1 from {scheduled} limit :cap);

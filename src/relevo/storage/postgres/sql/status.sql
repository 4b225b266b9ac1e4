-- What `relevo status` shows. Counts stop at :cap, so that it stays cheap on any backlog; ages are in seconds, by this
-- database's clock.

-- name: status.pending
-- `order by seq` makes the partial index the obvious plan, whatever the statistics say.
select count(*) from (select from {outbox} where settled_at is null order by seq limit :cap) as pending;

-- name: status.oldest
select cast(extract(epoch from clock_timestamp() - created_at) as double precision)
from {outbox} where settled_at is null order by seq limit 1;

-- name: status.lanes
select cast(holder as text), count(*), min(epoch), max(epoch) from {lane}
where holder is not null and expires_at > clock_timestamp() group by holder order by 1;

-- name: status.destinations
select d.topic, min(d.reason), cast(extract(epoch from clock_timestamp() - min(d.since)) as double precision)
from {destination} d join {process} p on p.process_id = d.process_id and p.expires_at > clock_timestamp()
group by d.topic order by d.topic;

-- name: status.held
with behind as (
  select side, consumer, topic, held_key, count(*) as messages
  from (select side, consumer, topic, held_key from {held_message} limit :cap) as first_ones
  group by side, consumer, topic, held_key
)
select k.side, k.consumer, k.topic, k.state, count(*), cast(coalesce(sum(b.messages), 0) as bigint),
       cast(extract(epoch from clock_timestamp() - min(k.since)) as double precision)
from {held_key} k
left join behind b on (b.side, b.consumer, b.topic, b.held_key) = (k.side, k.consumer, k.topic, k.key)
group by k.side, k.consumer, k.topic, k.state order by 1, 2, 3, 4;

-- name: status.scheduled
select count(*), cast(extract(epoch from (select min(due_at) from {scheduled} where due_at > timestamptz '-infinity'
                                          and due_at < timestamptz '9999-01-01 00:00:00+00') - clock_timestamp())
                      as double precision)
from (select from {scheduled} limit :cap) as first_ones;

-- name: status.transactions
-- Transactions that keep vacuum from its work: sessions, and prepared ones that nobody ended.
select pid, cast(extract(epoch from clock_timestamp() - xact_start) as double precision) as age_s, state, left(query, 200)
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
  and xact_start < clock_timestamp() - :older_than_s * interval '1 second'
union all
select null, cast(extract(epoch from clock_timestamp() - prepared) as double precision), 'prepared', left(gid, 200)
from pg_prepared_xacts
where database = current_database() and prepared < clock_timestamp() - :older_than_s * interval '1 second'
order by age_s desc limit 10;

-- name: status.hidden_sessions
-- Sessions of other roles show nothing without pg_read_all_stats.
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query = '<insufficient privilege>';

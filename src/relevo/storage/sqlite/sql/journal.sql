-- The in-flight journal: what a consumer process took and did not settle. An owner of zeros has handed its message back
-- in good order, with the attempts it had spent.

-- name: journal.found
select j.event_id, j.owner, j.attempts,
       exists (select 1 from {inbox} i
               where i.consumer = j.consumer and i.event_id = j.event_id and i.generation = :generation)
from {journal} j
where j.consumer = :consumer and j.event_id in (select value from json_each(:event_ids));

-- name: journal.write
insert into {journal} (consumer, event_id, owner)
select :consumer, value, :owner from json_each(:event_ids) where true
on conflict (consumer, event_id) do update
set owner = excluded.owner, taken_at = cast((julianday('now') - 2440587.5) * 86400000 as integer);

-- name: journal.count
insert into {journal} (consumer, event_id, owner, attempts)
values (:consumer, :event_id, :owner, :attempts)
on conflict (consumer, event_id) do update
set owner = excluded.owner, attempts = excluded.attempts,
    taken_at = cast((julianday('now') - 2440587.5) * 86400000 as integer);

-- name: journal.remove
delete from {journal}
where consumer = :consumer and owner = :owner and event_id in (select value from json_each(:event_ids));

-- name: journal.forget_fresh
delete from {journal}
where consumer = :consumer and owner = :owner and attempts = 0
  and event_id in (select value from json_each(:event_ids));

-- name: journal.hand_back
update {journal} set owner = '00000000-0000-0000-0000-000000000000'
where consumer = :consumer and owner = :owner and event_id in (select value from json_each(:event_ids));

-- name: journal.purge
delete from {journal} where (consumer, event_id) in (
  select consumer, event_id from {journal}
  where taken_at < cast((julianday('now') - 2440587.5) * 86400000 as integer) - :window_s * 1000
  limit :limit)
returning 1;

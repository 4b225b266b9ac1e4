-- The in-flight journal: what a consumer process took and did not settle. An owner of zeros has handed its message back
-- in good order, with the attempts it had spent.

-- name: journal.take
-- What is settled goes, what is taken is written down, and what stood there before is found: a part does not see what
-- another one writes. Nobody waits for the disk: what is lost, with the server and this process dying in the same moment,
-- is a suspicion.
with gone as (
  delete from {journal}
  where consumer = cast(:consumer as text) and owner = cast(:owner as uuid)
    and event_id = any (cast(:settled as uuid[]))
), written as (
  insert into {journal} (consumer, event_id, owner)
  select cast(:consumer as text), id, cast(:owner as uuid)
  from unnest(cast(:event_ids as uuid[])) as id, (select set_config('synchronous_commit', 'off', true)) as hurry
  order by id
  on conflict (consumer, event_id) do update set owner = excluded.owner, taken_at = clock_timestamp()
)
select cast(j.event_id as text), cast(j.owner as text), j.attempts,
       exists (select from {inbox} i
               where i.consumer = j.consumer and i.event_id = j.event_id and i.generation = cast(:generation as integer))
from {journal} j
where j.consumer = cast(:consumer as text) and j.event_id = any (cast(:event_ids as uuid[]));

-- name: journal.count
insert into {journal} (consumer, event_id, owner, attempts)
values (cast(:consumer as text), cast(:event_id as uuid), cast(:owner as uuid), cast(:attempts as integer))
on conflict (consumer, event_id) do update
set owner = excluded.owner, attempts = excluded.attempts, taken_at = clock_timestamp();

-- name: journal.remove
delete from {journal}
where consumer = cast(:consumer as text) and owner = cast(:owner as uuid)
  and event_id = any (cast(:event_ids as uuid[]));

-- name: journal.forget_fresh
delete from {journal}
where consumer = cast(:consumer as text) and owner = cast(:owner as uuid) and attempts = 0
  and event_id = any (cast(:event_ids as uuid[]));

-- name: journal.hand_back
update {journal} set owner = '00000000-0000-0000-0000-000000000000'
where consumer = cast(:consumer as text) and owner = cast(:owner as uuid)
  and event_id = any (cast(:event_ids as uuid[]));

-- name: journal.purge
delete from {journal} where ctid = any (array(
  select ctid from {journal}
  where taken_at < clock_timestamp() - make_interval(secs => cast(:window_s as double precision))
  limit cast(:limit as integer) for update skip locked))
returning 1;

-- What people pause. Read whole, about once a second, by every process: a handful of rows.

-- name: pause.all
select kind, name, topic, consumer, lane, key, who, why,
       cast(extract(epoch from since) as double precision),
       cast(extract(epoch from clock_timestamp() - since) as double precision)
from {pause} order by kind, consumer, topic, name;

-- name: pause.add
insert into {pause} (kind, name, topic, consumer, lane, key, who, why)
values (cast(:kind as text), cast(:name as text), cast(:topic as text), cast(:consumer as text),
        cast(:lane as smallint), cast(:key as bytea), cast(:who as text), cast(:why as text))
on conflict (kind, consumer, topic, name) do nothing
returning 1;

-- name: pause.remove
delete from {pause}
where kind = cast(:kind as text) and consumer = cast(:consumer as text) and topic = cast(:topic as text)
  and name = cast(:name as text)
returning 1;

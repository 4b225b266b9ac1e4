-- What people pause. Read whole, about once a second, by every process: a handful of rows.

-- name: pause.all
select kind, name, topic, consumer, lane, key, who, why,
       since / 1000.0,
       (cast((julianday('now') - 2440587.5) * 86400000 as integer) - since) / 1000.0
from {pause} order by kind, consumer, topic, name;

-- name: pause.add
insert into {pause} (kind, name, topic, consumer, lane, key, who, why)
values (:kind, :name, :topic, :consumer,
        :lane, :key, :who, :why)
on conflict (kind, consumer, topic, name) do nothing
returning 1;

-- name: pause.remove
delete from {pause}
where kind = :kind and consumer = :consumer and topic = :topic
  and name = :name
returning 1;

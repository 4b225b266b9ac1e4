-- SQLite has no stored functions: the SQL contract for triggers and other languages is a view with an INSTEAD OF trigger.
--   insert into relevo_add (topic, type, payload, key) values ('shop.order', 'shop.order.placed', '{"id": 1}', '1');

create view {add} as
  select topic, type, payload, key, headers, schema_version, aggregate_version, aggregate_type, aggregate_id, kind
  from {outbox};

create trigger {add_insert} instead of insert on {add}
begin
  select raise(abort, 'relevo: topic and type are 1 to 200 of the characters A-Z a-z 0-9 . _ -')
  where coalesce(length(new.topic), 0) not between 1 and 200 or new.topic glob '*[^A-Za-z0-9._-]*'
     or coalesce(length(new.type), 0) not between 1 and 200 or new.type glob '*[^A-Za-z0-9._-]*';
  select raise(abort, 'relevo: payload must be JSON')
  where new.payload is not null and not json_valid(new.payload);
  select raise(abort, 'relevo: the message is larger than 1000000 bytes')
  where coalesce(length(cast(new.payload as blob)), 0) + coalesce(length(cast(new.key as blob)), 0)
      + coalesce(length(cast(new.headers as blob)), 0) > 1000000;
  insert into {outbox} (event_id, topic, type, payload, key, headers, schema_version, aggregate_version,
                        aggregate_type, aggregate_id, kind)
  select substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(r, 1, 3) || '-'
         || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(r, 4, 3) || '-' || substr(r, 7, 12),
         new.topic, new.type, cast(new.payload as blob), cast(new.key as blob), new.headers,
         coalesce(new.schema_version, 1), new.aggregate_version, new.aggregate_type, new.aggregate_id,
         coalesce(new.kind, 'event')
  from (select printf('%012x', cast((julianday('now') - 2440587.5) * 86400000 as integer)) as h,
               lower(hex(randomblob(9))) as r);
end;

create view {outbox_readable} as
  select seq, event_id, kind, topic, cast(key as text) as key, type, schema_version,
         coalesce(aggregate_type, topic) as aggregate_type, coalesce(aggregate_id, cast(key as text)) as aggregate_id,
         aggregate_version, cast(payload as text) as payload, content_type, headers,
         strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') as created_at,
         strftime('%Y-%m-%d %H:%M:%f', settled_at / 1000.0, 'unixepoch') as settled_at, outcome, bucket
  from {outbox};

create view {held_readable} as
  select m.side, m.consumer, m.topic, cast(m.held_key as text) as key, k.state, k.reason, k.error_type, k.error,
         k.attempts, strftime('%Y-%m-%d %H:%M:%f', k.due_at / 1000.0, 'unixepoch') as due_at,
         strftime('%Y-%m-%d %H:%M:%f', k.since / 1000.0, 'unixepoch') as since, m.event_id, m.type, m.schema_version,
         cast(m.payload as text) as payload, m.headers,
         strftime('%Y-%m-%d %H:%M:%f', m.created_at / 1000.0, 'unixepoch') as created_at,
         strftime('%Y-%m-%d %H:%M:%f', m.held_at / 1000.0, 'unixepoch') as held_at, m.position, m.shard
  from {held_message} m
  join {held_key} k on k.side = m.side and k.consumer = m.consumer and k.topic = m.topic and k.key = m.held_key;

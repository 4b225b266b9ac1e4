-- Names of headers that CloudEvents and Relevo set themselves are refused in what SQL appends.
drop trigger {add_insert};

create trigger {add_insert} instead of insert on {add}
begin
  select raise(abort, 'relevo: topic and type are 1 to 200 of the characters A-Z a-z 0-9 . _ -')
  where coalesce(length(new.topic), 0) not between 1 and 200 or new.topic glob '*[^A-Za-z0-9._-]*'
     or coalesce(length(new.type), 0) not between 1 and 200 or new.type glob '*[^A-Za-z0-9._-]*';
  select raise(abort, 'relevo: header names that begin with ce_, cloudEvents or relevo-, and content-type, are reserved')
  where case when json_valid(new.headers) and json_type(new.headers) = 'object' then exists (
    select 1 from json_each(new.headers)
    where lower(key) glob 'ce_*' or lower(key) glob 'cloudevents[:_]*' or lower(key) glob 'relevo-*'
       or lower(key) = 'content-type') end;
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

-- Bytes as text where they are text (UTF-8 without a NUL; beyond 100,000 bytes: ASCII), else in hexadecimal: whatever a
-- stranger sent, every client can read the views. Each character is looked at once, by the hexadecimal of its bytes.
drop view {outbox_readable};
create view {outbox_readable} as
  select seq, event_id, kind, topic, key_text as key, type, schema_version,
         coalesce(aggregate_type, topic) as aggregate_type, coalesce(aggregate_id, key_text) as aggregate_id,
         aggregate_version, payload_text as payload, content_type, headers,
         strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') as created_at,
         strftime('%Y-%m-%d %H:%M:%f', settled_at / 1000.0, 'unixepoch') as settled_at, outcome, bucket
  from (
    select o.*,
           case
             when instr(o.key, x'00') = 0
               and (cast(o.key as text) not glob '*[^' || char(1) || '-' || char(127) || ']*'
                    or length(o.key) <= 100000 and length(o.key) < (
                      with recursive step (at, h) as (
                        select 1, hex(substr(o.key, 1, 4))
                        union all
                        select at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'),
                               hex(substr(o.key, at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'), 4))
                        from step
                        where h glob '[0-7]*' or h glob 'C[2-9A-F][89AB]*' or h glob 'D?[89AB]*'
                           or h glob 'E0[AB]?[89AB]*' or h glob 'E[1-9A-CEF][89AB]?[89AB]*' or h glob 'ED[89]?[89AB]*'
                           or h glob 'F0[9AB]?[89AB]?[89AB]?' or h glob 'F[123][89AB]?[89AB]?[89AB]?'
                           or h glob 'F48?[89AB]?[89AB]?'
                      ) select max(at) from step))
               then cast(o.key as text)
             when o.key is not null then '0x' || lower(hex(o.key))
           end as key_text,
           case
             when instr(o.payload, x'00') = 0
               and (cast(o.payload as text) not glob '*[^' || char(1) || '-' || char(127) || ']*'
                    or length(o.payload) <= 100000 and length(o.payload) < (
                      with recursive step (at, h) as (
                        select 1, hex(substr(o.payload, 1, 4))
                        union all
                        select at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'),
                               hex(substr(o.payload, at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'), 4))
                        from step
                        where h glob '[0-7]*' or h glob 'C[2-9A-F][89AB]*' or h glob 'D?[89AB]*'
                           or h glob 'E0[AB]?[89AB]*' or h glob 'E[1-9A-CEF][89AB]?[89AB]*' or h glob 'ED[89]?[89AB]*'
                           or h glob 'F0[9AB]?[89AB]?[89AB]?' or h glob 'F[123][89AB]?[89AB]?[89AB]?'
                           or h glob 'F48?[89AB]?[89AB]?'
                      ) select max(at) from step))
               then cast(o.payload as text)
             when o.payload is not null then '0x' || lower(hex(o.payload))
           end as payload_text
    from {outbox} o
  );

drop view {archive_readable};
create view {archive_readable} as
  select seq, event_id, kind, topic, key_text as key, type, schema_version,
         coalesce(aggregate_type, topic) as aggregate_type, coalesce(aggregate_id, key_text) as aggregate_id,
         aggregate_version, payload_text as payload, content_type, headers,
         strftime('%Y-%m-%d %H:%M:%f', created_at / 1000.0, 'unixepoch') as created_at,
         strftime('%Y-%m-%d %H:%M:%f', settled_at / 1000.0, 'unixepoch') as settled_at, outcome,
         strftime('%Y-%m-%d %H:%M:%f', archived_at / 1000.0, 'unixepoch') as archived_at, bucket
  from (
    select o.*,
           case
             when instr(o.key, x'00') = 0
               and (cast(o.key as text) not glob '*[^' || char(1) || '-' || char(127) || ']*'
                    or length(o.key) <= 100000 and length(o.key) < (
                      with recursive step (at, h) as (
                        select 1, hex(substr(o.key, 1, 4))
                        union all
                        select at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'),
                               hex(substr(o.key, at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'), 4))
                        from step
                        where h glob '[0-7]*' or h glob 'C[2-9A-F][89AB]*' or h glob 'D?[89AB]*'
                           or h glob 'E0[AB]?[89AB]*' or h glob 'E[1-9A-CEF][89AB]?[89AB]*' or h glob 'ED[89]?[89AB]*'
                           or h glob 'F0[9AB]?[89AB]?[89AB]?' or h glob 'F[123][89AB]?[89AB]?[89AB]?'
                           or h glob 'F48?[89AB]?[89AB]?'
                      ) select max(at) from step))
               then cast(o.key as text)
             when o.key is not null then '0x' || lower(hex(o.key))
           end as key_text,
           case
             when instr(o.payload, x'00') = 0
               and (cast(o.payload as text) not glob '*[^' || char(1) || '-' || char(127) || ']*'
                    or length(o.payload) <= 100000 and length(o.payload) < (
                      with recursive step (at, h) as (
                        select 1, hex(substr(o.payload, 1, 4))
                        union all
                        select at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'),
                               hex(substr(o.payload, at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'), 4))
                        from step
                        where h glob '[0-7]*' or h glob 'C[2-9A-F][89AB]*' or h glob 'D?[89AB]*'
                           or h glob 'E0[AB]?[89AB]*' or h glob 'E[1-9A-CEF][89AB]?[89AB]*' or h glob 'ED[89]?[89AB]*'
                           or h glob 'F0[9AB]?[89AB]?[89AB]?' or h glob 'F[123][89AB]?[89AB]?[89AB]?'
                           or h glob 'F48?[89AB]?[89AB]?'
                      ) select max(at) from step))
               then cast(o.payload as text)
             when o.payload is not null then '0x' || lower(hex(o.payload))
           end as payload_text
    from {archive} o
  );

drop view {held_readable};
create view {held_readable} as
  select m.side, m.consumer, m.topic, case
           when instr(m.held_key, x'00') = 0
             and (cast(m.held_key as text) not glob '*[^' || char(1) || '-' || char(127) || ']*'
                  or length(m.held_key) <= 100000 and length(m.held_key) < (
                    with recursive step (at, h) as (
                      select 1, hex(substr(m.held_key, 1, 4))
                      union all
                      select at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'),
                             hex(substr(m.held_key, at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'), 4))
                      from step
                      where h glob '[0-7]*' or h glob 'C[2-9A-F][89AB]*' or h glob 'D?[89AB]*'
                         or h glob 'E0[AB]?[89AB]*' or h glob 'E[1-9A-CEF][89AB]?[89AB]*' or h glob 'ED[89]?[89AB]*'
                         or h glob 'F0[9AB]?[89AB]?[89AB]?' or h glob 'F[123][89AB]?[89AB]?[89AB]?'
                         or h glob 'F48?[89AB]?[89AB]?'
                    ) select max(at) from step))
             then cast(m.held_key as text)
           when m.held_key is not null then '0x' || lower(hex(m.held_key))
         end as key, k.state, k.reason, k.error_type, k.error,
         k.attempts, strftime('%Y-%m-%d %H:%M:%f', k.due_at / 1000.0, 'unixepoch') as due_at,
         strftime('%Y-%m-%d %H:%M:%f', k.since / 1000.0, 'unixepoch') as since, m.event_id, m.type, m.schema_version,
         case
           when instr(m.payload, x'00') = 0
             and (cast(m.payload as text) not glob '*[^' || char(1) || '-' || char(127) || ']*'
                  or length(m.payload) <= 100000 and length(m.payload) < (
                    with recursive step (at, h) as (
                      select 1, hex(substr(m.payload, 1, 4))
                      union all
                      select at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'),
                             hex(substr(m.payload, at + 1 + (h >= '80') + (h >= 'E0') + (h >= 'F0'), 4))
                      from step
                      where h glob '[0-7]*' or h glob 'C[2-9A-F][89AB]*' or h glob 'D?[89AB]*'
                         or h glob 'E0[AB]?[89AB]*' or h glob 'E[1-9A-CEF][89AB]?[89AB]*' or h glob 'ED[89]?[89AB]*'
                         or h glob 'F0[9AB]?[89AB]?[89AB]?' or h glob 'F[123][89AB]?[89AB]?[89AB]?'
                         or h glob 'F48?[89AB]?[89AB]?'
                    ) select max(at) from step))
             then cast(m.payload as text)
           when m.payload is not null then '0x' || lower(hex(m.payload))
         end as payload, m.headers,
         strftime('%Y-%m-%d %H:%M:%f', m.created_at / 1000.0, 'unixepoch') as created_at,
         strftime('%Y-%m-%d %H:%M:%f', m.held_at / 1000.0, 'unixepoch') as held_at, m.position, m.shard
  from {held_message} m
  join {held_key} k on k.side = m.side and k.consumer = m.consumer and k.topic = m.topic and k.key = m.held_key;

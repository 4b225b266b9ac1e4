-- For people with a SQL prompt, triggers and other languages.

create function {bucket_of}(k bytea, event_id uuid) returns smallint
language sql immutable parallel safe as $$
  select ((get_byte(h, 0) << 8 | get_byte(h, 1)) & 1023)::smallint
  from (select sha256(coalesce(k, uuid_send(event_id))) as h) as digest
$$;

create function {uuid7}() returns uuid
language sql volatile parallel safe as $$
  -- RFC 9562: 48 bits of milliseconds, version 7, the rest random (taken from a version 4)
  select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
      placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
      52, 1), 53, 1), 'hex')::uuid
$$;

-- Appends one message in the caller's transaction; returns its event_id. payload is JSON.
create function {add}(
  topic text, type text, payload jsonb, key text default null, headers jsonb default null,
  schema_version integer default 1, aggregate_version bigint default null,
  aggregate_type text default null, aggregate_id text default null, kind text default 'event'
) returns uuid
language plpgsql volatile as $$
declare
  new_id uuid := {uuid7}();
  key_bytes bytea := convert_to(key, 'UTF8');
  body bytea := convert_to(payload::text, 'UTF8');
begin
  if topic is null or topic !~ '^[A-Za-z0-9._-]{1,200}$' or type is null or type !~ '^[A-Za-z0-9._-]{1,200}$' then
    raise exception 'relevo: topic and type are 1 to 200 of the characters A-Z a-z 0-9 . _ -'
      using errcode = 'invalid_parameter_value';
  end if;
  if coalesce(length(body), 0) + coalesce(length(key_bytes), 0) + coalesce(length(headers::text), 0) > 1000000 then
    raise exception 'relevo: the message is larger than 1000000 bytes' using errcode = 'program_limit_exceeded';
  end if;
  insert into {outbox} (event_id, bucket, kind, topic, key, type, schema_version, aggregate_type, aggregate_id,
                        aggregate_version, payload, headers)
  values (new_id, {bucket_of}(key_bytes, new_id), kind, topic, key_bytes, type, schema_version, aggregate_type,
          aggregate_id, aggregate_version, body, headers);
  return new_id;
end
$$;

-- Bytes as text where they are text, else null: for looking, never for carrying.
create function {as_text}(bytes bytea) returns text
language plpgsql immutable strict parallel safe as $$
begin
  return convert_from(bytes, 'UTF8');
exception when character_not_in_repertoire or untranslatable_character then
  return null;
end
$$;

create view {outbox_readable} as
  select seq, event_id, kind, topic, {as_text}(key) as key, type, schema_version,
         coalesce(aggregate_type, topic) as aggregate_type, coalesce(aggregate_id, {as_text}(key)) as aggregate_id,
         aggregate_version, coalesce({as_text}(payload), encode(payload, 'base64')) as payload, content_type, headers,
         created_at, settled_at, outcome, bucket
  from {outbox};

create view {held_readable} as
  select m.side, m.consumer, m.topic, {as_text}(m.held_key) as key, k.state, k.reason, k.error_type, k.error, k.attempts,
         k.due_at, k.since, m.event_id, m.type, m.schema_version,
         coalesce({as_text}(m.payload), encode(m.payload, 'base64')) as payload, m.headers, m.created_at, m.held_at,
         m.position, m.shard
  from {held_message} m
  join {held_key} k on (k.side, k.consumer, k.topic, k.key) = (m.side, m.consumer, m.topic, m.held_key);

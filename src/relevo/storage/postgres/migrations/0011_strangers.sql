-- Names of headers that CloudEvents and Relevo set themselves are refused in what SQL appends.

create or replace function {add}(
  topic text, type text, payload jsonb, key text default null, headers jsonb default null,
  schema_version integer default 1, aggregate_version bigint default null,
  aggregate_type text default null, aggregate_id text default null, kind text default 'event'
) returns uuid
language plpgsql volatile as $$
declare
  new_id uuid := {uuid7}();
  key_bytes bytea := convert_to(key, 'UTF8');
  body bytea := convert_to(payload::text, 'UTF8');
  reserved text;
begin
  if topic is null or topic !~ '^[A-Za-z0-9._-]{1,200}$' or type is null or type !~ '^[A-Za-z0-9._-]{1,200}$' then
    raise exception 'relevo: topic and type are 1 to 200 of the characters A-Z a-z 0-9 . _ -'
      using errcode = 'invalid_parameter_value';
  end if;
  if jsonb_typeof(headers) = 'object' then
    select name into reserved from jsonb_object_keys(headers) as name
    where lower(name collate "C") ~ '^(ce_|cloudevents[:_]|relevo-|content-type$)' limit 1;
    if found then
      raise exception 'relevo: the header % is set by CloudEvents or by Relevo; give it another name', to_json(reserved)
        using errcode = 'invalid_parameter_value';
    end if;
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

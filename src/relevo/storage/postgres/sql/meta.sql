-- What is installed here: Relevo's own bookkeeping of its tables.

-- name: meta.lock
-- Transaction-level, so that it also works behind a transaction pooler. Let go at commit.
do $relevo$
begin
  perform pg_advisory_xact_lock(
    hashtextextended('relevo:' || coalesce(:schema, current_schema(), '') || '.' || :prefix, 0));
end
$relevo$;
-- Whoever waits for a table lock makes every writer wait behind it: give up instead, and say so.
set local lock_timeout = '10s';

-- name: meta.create_schema
-- `create schema if not exists` alone asks for rights on the database even when the schema exists.
do $relevo$
begin
  if not exists (select from pg_namespace where nspname = :schema) then
    create schema {schema};
  end if;
end
$relevo$;

-- name: meta.create_migration
-- (a notice about the table that exists is no news)
set local client_min_messages = warning;
create table if not exists {migration} (
  number integer primary key,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default clock_timestamp()
);

-- name: meta.table_exists
select to_regclass(:table) is not null;

-- name: meta.applied
select number, name, checksum from {migration} order by number;

-- name: meta.record
insert into {migration} (number, name, checksum) values (:number, :name, :checksum);

-- name: meta.write
insert into {meta} (schema_version, oldest_code, source, lanes) values (:number, :oldest_code, :source, :lanes)
on conflict (only_row) do update
  set schema_version = excluded.schema_version, oldest_code = excluded.oldest_code
  where {meta}.schema_version < excluded.schema_version;
insert into {lane} (lane) select generate_series(0, (select lanes from {meta}) - 1) on conflict do nothing;

-- name: meta.write_system
-- Some hosted servers keep these functions for themselves; then a restored copy cannot be recognised, nothing more.
do $relevo$
begin
  update {meta} set
    system_id = (select system_identifier::text from pg_control_system()),
    timeline = ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer
  where (system_id, timeline) is distinct from (
    (select system_identifier::text from pg_control_system()),
    ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer)
    -- Positions of another cluster mean nothing here: to write its identifier over would hide that.
    and (source = 'mark' or system_id is null
         or system_id = (select system_identifier::text from pg_control_system()));
exception when insufficient_privilege or feature_not_supported or undefined_function then
  raise notice 'relevo: this role may not read the system identifier';
end
$relevo$;

-- name: meta.read
select m.schema_version, m.oldest_code, m.source, m.lanes::integer, m.system_id,
       pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
       (select s.seqcache from pg_sequence s where s.seqrelid = pg_get_serial_sequence(:outbox, 'seq')::regclass)
from {meta} m;

-- name: meta.system_id
select system_identifier::text from pg_control_system();

-- name: meta.moved
-- From schema version 8 on: the source that settings may still name.
select moved_from from {meta};

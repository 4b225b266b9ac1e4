-- What is installed here: Relevo's own bookkeeping of its tables.

-- name: meta.create_migration
create table if not exists {migration} (
  number integer primary key,
  name text not null,
  checksum text not null,
  applied_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
);

-- name: meta.table_exists
select count(*) from sqlite_master where type = 'table' and name = :table;

-- name: meta.applied
select number, name, checksum from {migration} order by number;

-- name: meta.record
insert into {migration} (number, name, checksum) values (:number, :name, :checksum);

-- name: meta.write
-- only_row is the rowid: its default would not be used.
insert into {meta} (only_row, schema_version, oldest_code, source, lanes) values (1, :number, :oldest_code, :source, :lanes)
on conflict (only_row) do update
  set schema_version = excluded.schema_version, oldest_code = excluded.oldest_code
  where schema_version < excluded.schema_version;
with recursive n(lane) as (select 0 union all select lane + 1 from n where lane + 1 < (select lanes from {meta}))
insert or ignore into {lane} (lane) select lane from n;

-- name: meta.read
select schema_version, oldest_code, source, lanes, null, 0, 0, null from {meta};

-- name: meta.moved
-- From schema version 8 on: the source that settings may still name.
select moved_from from {meta};

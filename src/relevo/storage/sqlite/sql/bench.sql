-- What `relevo bench` asks and removes.

-- name: bench.facts
select 'journal_mode', cast(journal_mode as text) from pragma_journal_mode
union all select 'synchronous', cast(synchronous as text) from pragma_synchronous
union all select 'sqlite_version', sqlite_version();

-- name: bench.newest
select coalesce(max(seq), 0) from {outbox};

-- name: bench.remove
delete from {outbox} where seq in (
  select seq from {outbox} where seq > :since and topic = :topic order by seq limit :limit)
returning 1;

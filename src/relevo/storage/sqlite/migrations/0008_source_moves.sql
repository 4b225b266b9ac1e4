-- Moving between the sources. moved_from: what settings may still say after a move; until moving_until nobody may acquire
-- lanes.
alter table {meta} add column moved_from text check (moved_from in ('mark', 'log'));
alter table {meta} add column moving_until integer;

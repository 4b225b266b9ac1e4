-- The source `log`: late rows are found by their transaction. Every lane has a cursor from the start.
create index if not exists {name:outbox_tx} on {outbox} (tx, seq);
insert into {cursor} (lane) select lane from {lane} on conflict do nothing;

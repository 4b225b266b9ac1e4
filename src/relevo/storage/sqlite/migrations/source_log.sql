-- The source `log`: a plain cursor by seq, since seq order is commit order here. Every lane has one from the start.
create index if not exists {name:outbox_unbucketed} on {outbox} (seq) where bucket is null;
insert into {cursor} (lane) select lane from {lane} where true on conflict do nothing;

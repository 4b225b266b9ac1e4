-- Indexes of the source `mark`: unsettled rows in seq order. Built when the source is chosen.
create index if not exists {name:outbox_unsettled} on {outbox} (seq) where settled_at is null;
create index if not exists {name:outbox_unbucketed} on {outbox} (seq) where bucket is null;

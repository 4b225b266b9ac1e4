-- The embedded broker's file. user_version 1.

create table topics (
    topic       text    primary key,
    created_ms  integer not null
) strict;

create table shards (
    shard_id        integer primary key,
    topic           text    not null references topics (topic),
    part            integer not null,
    first_position  integer not null default 0,  -- the oldest record kept
    next_position   integer not null default 0,  -- never goes back, so a position is never used twice
    unique (topic, part)
) strict;

create table records (
    shard_id    integer not null,
    position    integer not null,
    key         blob,
    payload     blob,
    headers     blob    not null,  -- msgpack: [[name, bytes], ...], what relevo.wire.encode gave
    created_ms  integer not null,
    primary key (shard_id, position)
) strict;

create table groups (
    group_name  text    primary key,
    epoch       integer not null,  -- moves when members or shares change; members look at it before each fetch
    created_ms  integer not null
) strict;

create table members (
    group_name  text    not null,
    member      text    not null,
    topics      text    not null,  -- JSON array
    joined      integer not null,
    expires_ms  integer not null,  -- by SQLite's clock on this machine
    primary key (group_name, member)
) strict;

-- One row per group and shard. A member owns what names it; generation moves with every change of owner, and a commit
-- must name the generation it was delivered under.
create table leases (
    group_name  text    not null,
    shard_id    integer not null,
    committed   integer not null,
    generation  integer not null default 0,
    member      text,
    primary key (group_name, shard_id)
) strict;

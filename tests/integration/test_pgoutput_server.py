"""The decoder against what real servers write, over random tables, types and changes.

Two witnesses: ``pg_recvlogical`` with ``test_decoding``, whose text is rebuilt here from what our decoder read; and
``pg_recvlogical`` with ``pgoutput``, whose bytes are ours.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from relevo.sources.wal.pgoutput import decode
from relevo.sources.wal.protocol import (
    Begin,
    Commit,
    Decoded,
    Delete,
    Insert,
    Logical,
    Relation,
    Row,
    Text,
    Truncate,
    Type,
    Unchanged,
    Update,
)
from tests.support.pgoutput import encode
from tests.support.private_postgres import PrivatePostgres, binary, private_postgres

TYPES = {
    "integer": ["0", "-1", "2147483647"],
    "bigint": ["-9223372036854775808", "42"],
    "smallint": ["-32768", "7"],
    "numeric": ["NaN", "0.000", "-12345678901234567890.0987654321"],
    "double precision": ["NaN", "-Infinity", "1e-300"],
    "real": ["0.1", "3"],
    "text": ["", "it's", "üñí\n\\ \t", "x" * 40],
    "varchar(9)": ["abc", ""],
    "bytea": ["\\x", "\\x00ff27", "\\x0a0d"],
    "boolean": ["t", "f"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "jsonb": ['{"a": ["x", null, 1.5]}', '"it\'s"'],
    "json": ['{"b" : 1}'],
    "timestamptz": ["infinity", "2024-02-29 12:00:00.123456+00", "0044-03-15 10:00:00+00 BC"],
    "date": ["-infinity", "1999-12-31"],
    "interval": ["1 year -3 days 04:05:06.7"],
    "inet": ["10.0.0.1/8", "::1"],
    "int[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}"],
    "text[]": ['{"a b","it\'s",NULL}'],
    "int4range": ["empty", "[1,5)"],
    "point": ["(1,2)"],
    "xid8": ["18446744073709551615"],
    "bit varying": ["101", ""],
    "mood": ["sad", "it's ok"],
    "place": ['(1,"a,b")'],
    "short": ["ab"],
}
UNQUOTED = {"smallint", "integer", "bigint", "oid", "real", "double precision", "numeric"}


@pytest.fixture(scope="module", params=["usual", "18"])
def server(
    request: pytest.FixtureRequest, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrivatePostgres]:
    with private_postgres(tmp_path_factory.mktemp("pgoutput"), bin=binary(request.param)) as found:
        yield found


def play(connection: psycopg.Connection, chance: random.Random, tables: int, changes: int) -> list[str]:
    """Random tables and changes to them, committed; the names of the tables."""
    names = []
    columns: dict[str, list[str]] = {}
    for number in range(tables):
        name = f"t{number}_{chance.randrange(10**9)}"
        columns[name] = chance.sample(sorted(TYPES), chance.randint(2, 12))
        parts = ["id integer primary key", *(f'"c{i} {t[0]}" {t}' for i, t in enumerate(columns[name]))]
        connection.execute(f"create table {name} ({', '.join(parts)})")
        connection.execute(f"alter table {name} replica identity {chance.choice(['full', 'default'])}")
        names.append(name)

    def value(type_: str) -> str | None:
        if chance.random() < 0.15:
            return None
        if type_ == "text" and chance.random() < 0.1:
            return "".join(chance.choices("abcdefghij'klmnop", k=9000))  # stored apart: unchanged in updates
        return chance.choice(TYPES[type_])

    for _ in range(changes):
        with connection.transaction():
            for _ in range(chance.randint(1, 5)):
                name = chance.choice(names)
                types = columns[name]
                match chance.choices("IUDTM", [6, 3, 2, 0.4, 1])[0]:
                    case "I":
                        marks = ", ".join(f"%s::{t}" for t in types)
                        connection.execute(
                            f"insert into {name} values (%s, {marks}) on conflict do nothing",
                            [chance.randrange(10**6), *map(value, types)],
                        )
                    case "U":
                        i = chance.randrange(len(types))
                        connection.execute(
                            f'update {name} set "c{i} {types[i][0]}" = %s::{types[i]} where mod(id, 2) = %s',
                            [value(types[i]), chance.randint(0, 1)],
                        )
                    case "D":
                        connection.execute(f"delete from {name} where mod(id, 7) = %s", [chance.randrange(7)])
                    case "T":
                        connection.execute(f"truncate {', '.join(chance.sample(names, chance.randint(1, 2)))}")
                    case "M":
                        content = bytes(chance.choices(range(256), k=chance.randint(0, 30)))
                        connection.execute("select pg_logical_emit_message(true, 'it''s', %s::bytea)", [content])
    return names


def written(value: bytes, type_: str) -> str:
    """A value as test_decoding prints it."""
    text = value.decode()
    if type_ in UNQUOTED:
        return text
    if type_ == "boolean":
        return "true" if text == "t" else "false"
    if type_.startswith("bit"):
        return f"B'{text}'"
    return "'" + text.replace("'", "''") + "'"


def tuple_text(row: Row, relation: Relation, types: dict[str, list[str]], *, skip_null: bool = False) -> str:
    parts = []
    for column, value, type_ in zip(relation.columns, row, types[relation.name], strict=True):
        if value is None:
            if not skip_null:
                parts.append(f" {quoted(column.name)}[{type_}]:null")
        elif isinstance(value, Unchanged):
            parts.append(f" {quoted(column.name)}[{type_}]:unchanged-toast-datum")
        else:
            assert isinstance(value, Text)
            parts.append(f" {quoted(column.name)}[{type_}]:{written(value, type_)}")
    return "".join(parts)


def quoted(name: str) -> str:
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else f'"{name}"'


def as_test_decoding(messages: list[Decoded], types: dict[str, list[str]]) -> list[str]:
    """The lines that test_decoding prints for the same changes."""
    lines = []
    relations: dict[int, Relation] = {}
    for message in messages:
        match message:
            case Relation():
                relations[message.oid] = message
            case Insert(oid, new):
                relation = relations[oid]
                lines.append(f"table public.{relation.name}: INSERT:{tuple_text(new, relation, types)}")
            case Update(oid, new, old):
                relation = relations[oid]
                before = (
                    "" if old is None else f" old-key:{tuple_text(old, relation, types, skip_null=True)} new-tuple:"
                )
                lines.append(f"table public.{relation.name}: UPDATE:{before}{tuple_text(new, relation, types)}")
            case Delete(oid, old):
                relation = relations[oid]
                lines.append(f"table public.{relation.name}: DELETE:{tuple_text(old, relation, types, skip_null=True)}")
            case Truncate(oids, options):
                names = ", ".join(f"public.{relations[oid].name}" for oid in oids)
                assert options == 0
                lines.append(f"table {names}: TRUNCATE: (no-flags)")
            case Logical(transactional, _, prefix, content):
                text = content.decode("latin-1")
                lines.append(
                    f"message: transactional: {int(transactional)} prefix: {prefix}, sz: {len(content)} content:{text}"
                )
            case _:
                assert isinstance(message, Begin | Commit | Type)
    return lines


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_as_pg_recvlogical_tells_them(server: PrivatePostgres, tmp_path: Path, seed: int) -> None:
    """FAILURES row 28 beside it: TRUNCATE, TYPE and messages are in the stream; every change equals the other
    witness's text, every message encodes to the bytes the server sent, in text and in binary format."""
    tmp_path.chmod(0o777)
    database = f"random_{seed}"
    server.query(f"create database {database}")
    url = server.url.replace("/postgres", f"/{database}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create type mood as enum ('sad', 'it''s ok')")
        connection.execute("create type place as (x integer, y text)")
        connection.execute("create domain short as varchar(5)")
        connection.execute("create publication p for all tables")
        for slot, plugin in (("raw", "pgoutput"), ("told", "test_decoding")):
            connection.execute("select pg_create_logical_replication_slot(%s, %s)", [f"{slot}_{seed}", plugin])
        names = play(connection, random.Random(seed), tables=4, changes=80)
        connection.execute("set search_path = ''")  # names of types in full, as test_decoding has them
        types = {
            name: [
                row[0]
                for row in connection.execute(
                    "select format_type(atttypid, null) from pg_attribute"
                    " where attrelid = %s::regclass and attnum > 0 order by attnum",
                    [f"public.{name}"],
                )
            ]
            for name in names
        }
        peek = (
            "select data from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
            " 'publication_names', 'p', 'messages', 'true', 'binary', %s)"
        )
        raw = [row[0] for row in connection.execute(peek, [f"raw_{seed}", "false"])]
        binary = [row[0] for row in connection.execute(peek, [f"raw_{seed}", "true"])]
        end = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert end is not None
    messages = [decode(data) for data in raw]
    assert [encode(message) for message in messages] == raw
    assert {Relation, Insert, Update, Delete, Truncate, Logical} <= {type(message) for message in messages}
    assert [encode(decode(data)) for data in binary] == binary
    assert [type(decode(data)) for data in binary] == [type(message) for message in messages]

    def received(slot: str, *options: str) -> bytes:
        target = tmp_path / slot
        server.run_client(
            "pg_recvlogical", "-d", url, "-S", slot, "--start", "-f", target, "-n", "-E", end[0],
            *(part for option in options for part in ("-o", option)),
        )  # fmt: skip
        return target.read_bytes()

    told = received(f"told_{seed}", "include-xids=0")
    # Which empty transactions are told of, and where a message stands to BEGIN, differs between versions.
    assert told.replace(b"BEGIN\n", b"").replace(b"COMMIT\n", b"") == _bytes(as_test_decoding(messages, types))
    same = received(f"raw_{seed}", "proto_version=1", "publication_names=p", "messages=true")
    assert same == b"".join(data + b"\n" for data in raw)
    assert any(isinstance(message, Type) for message in messages)
    with psycopg.connect(url, autocommit=True) as connection:
        for slot in ("raw", "told"):
            connection.execute("select pg_drop_replication_slot(%s)", [f"{slot}_{seed}"])


def _bytes(lines: list[str]) -> bytes:
    """Contents of messages are bytes, everything else is UTF-8."""
    out = []
    for line in lines:
        head, mark, content = line.partition(" content:") if line.startswith("message:") else (line, "", "")
        out.append(head.encode() + mark.encode() + content.encode("latin-1") + b"\n")
    return b"".join(out)

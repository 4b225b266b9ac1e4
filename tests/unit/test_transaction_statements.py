"""What a statement does to its transaction is read from its text as PostgreSQL would split it."""

from __future__ import annotations

import pytest

from relevo.storage.transactions.statements import Does, ends_transaction, what_it_does

ENDS = [
    *(
        "commit",
        "COMMIT WORK",
        "end",
        "end transaction",
        "abort",
        "rollback",
        "ROLLBACK AND CHAIN",
        "begin",
        "BEGIN ISOLATION",
    ),
    *("start transaction", "prepare transaction 'x'", "commit prepared 'x'", "rollback prepared 'x'"),
    *("/* app */ commit", "-- app\ncommit", "/* a /* nested */ b */ commit", " \n\t commit", ";;commit", "commit;"),
    *("select 1; commit", "select ';'; commit", "select $$ ; $$; commit", "select $a$ $b$ ; $a$; rollback"),
    *('select "a;b"; commit', "select E'\\'; x'; commit", "savepoint a; release a; commit", "rollback to a; rollback"),
    *(b"/* x */ commit", b"select 1; END", "select 1 -- x ; \n; commit", "insert into t values ('it''s'); commit"),
]
PASSES = [
    *(
        "select 1",
        "rollback to a",
        "rollback to savepoint a",
        "ROLLBACK WORK TO a",
        "rollback transaction to savepoint a",
    ),
    *("savepoint a", "release savepoint a", "update t set commit = 1", "select 'commit'", "select '; commit'"),
    *("select $$; commit $$", "select $x$; commit; $x$", "-- commit\nselect 1", "/* ; commit */ select 1"),
    *('select "; commit"', "select E'\\'; commit'", "execute p", "select 1 as begin_at"),
    *("select case when true then 1 end", "insert into commit values (1)", "with a as (select 1) select * from a"),
    *("create function f() returns int language sql begin atomic select 1; end", "call p()", b"select 1", "", ";"),
    *("do $$ begin perform 1; end $$", "lock table t", "declare c cursor for select 1", "copy t from stdin"),
    *("insert into temp values (1)", "select pg_advisory_xact_lock(1)", "declare c cursor without hold for select 1"),
]
SETS = [
    *("set local role a", "set local search_path = a", "set constraints all deferred", "set transaction read only"),
    *("select set_config('app.tenant', $1, true)", "/* x */ set local role a", "select 1; set local a.b = 'c'"),
    *("with a as (select 1) select 1, 2, 3, 4, set_config('a.b', 'c', true)", b"SET LOCAL a.b = 'c'"),
    "do $$ begin perform set_config('a.b', 'c', true); end $$",
    "create temp table t (a int) on commit drop",
]
LASTS = [
    *("set role a", "set session authorization a", "set search_path = a", "reset role", "reset all", "discard all"),
    *("set time zone 'UTC'", "set names 'latin1'", "select set_config('a.b', 'c', false)", "set session a.b = 'c'"),
    *("prepare p as select 1", "declare c scroll cursor with hold for select 1", "create temporary table t (a int)"),
    *("CREATE LOCAL TEMP TABLE t (a int)", "create or replace temp view v as select 1", "select pg_advisory_lock(1)"),
    *("select 1, 2, 3, 4, 5, pg_try_advisory_lock_shared(1, 2)", "select pg_try_advisory_lock(1)"),
]


@pytest.mark.parametrize("query", ENDS)
def test_what_ends_a_transaction(query: str | bytes) -> None:
    assert ends_transaction(query)


@pytest.mark.parametrize("query", PASSES)
def test_what_does_nothing_to_it(query: str | bytes) -> None:
    assert what_it_does(query) is Does.NOTHING


@pytest.mark.parametrize("query", SETS)
def test_what_sets_its_state(query: str | bytes) -> None:
    assert what_it_does(query) == Does.SETS


@pytest.mark.parametrize("query", LASTS)
def test_what_outlives_it(query: str | bytes) -> None:
    assert what_it_does(query) == Does.SETS | Does.LASTS

"""No task without a reader: a task is kept by ``relevo.tasks``, or the one who made it reads its end."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "relevo"

ALLOWED = {
    "brokers/embedded/publisher.py:publish": "a done callback reads it",
    "brokers/kafka/ends.py:marks": "a topic without an answer is one without a mark, asked again later",
    "brokers/kafka/producers.py:give_up": "the next change of producers awaits it",
    "brokers/kafka/publisher.py:_publish": "the watcher; its end is seen by the next call",
    "brokers/kafka/publisher.py:publish": "a done callback reads it",
    "brokers/postgres/publisher.py:publish": "a done callback reads it",
    "brokers/rabbitmq/publisher.py:_hand_over": "the outcomes of the call are read from it",
    "brokers/rabbitmq/subscription.py:_work": "the loop looks whether it is done, and reads it at the end",
    "clients/aio_pika.py:close": "waited for with a bound; a connection that is left",
    "clients/aio_pika.py:connect": "awaited, or closed by a done callback",
    "clients/aio_pika.py:let_go": "a connection that is left",
    "consumer/drain.py:_claim": "a done callback logs its end",
    "consumer/drain.py:run": "each task has a done callback that logs its end",
    "consumer/engine.py:_work": "its result is read when it ends",
    "consumer/intake.py:finish": "only waits for an event",
    "consumer/keys.py:_start": "the coroutine hands every error to the engine",
    "consumer/keys.py:cancel": "the tasks hand their errors to the engine",
    "consumer/runner.py:_run_all": "every result is read",
    "consumer/start.py:_asked": "its result is returned; left only at a stop",
    "effects/calling.py:on_loop": "it hands its error over as a value; read when it ends, or left behind with a reason",
    "effects/performer.py:work": "awaited under a shield",
    "effects/runner.py:_claim": "a done callback logs its end",
    "ops/bench.py:_arriving": "a command that a person waits for",
    "ops/moving_indexes.py:in_thread": "awaited",
    "ops/moving_wal.py:prepare": "awaited; left only with another error",
    "ops/replay_turn.py:_renewing": "a command that a person waits for",
    "relay/draining.py:_begin": "its result is read by the next step",
    "relay/engine.py:run": "only waits for an event",
    "relay/flight.py:_launch": "landed in order: every result is read",
    "relay/flight.py:forget": "after an error that is logged: what comes of these is read again",
    "relay/flight.py:give_back_ahead": "what failed to be read is read again",
    "relay/service.py:__aenter__": "``run`` logs how it ended, and health says so",
    "relay/settling.py:add": "the next settlement reads it",
    "relay/settling.py:forget": "after an error that is logged",
    "runtime/calls.py:apart": "awaited",
    "runtime/closing.py:stoppable": "its result is returned, or logged where a stop cut it short",
    "runtime/closing.py:within": "how it ended is logged",
    "runtime/supervise.py:supervise": "awaited: the process ends with it",
    "storage/transactions/base.py:finished": "awaited",
    "tasks.py:_start": "read by a done callback",
    "tasks.py:once": "read by a done callback",
}
"""Who makes a task, and who reads it."""


def makers(tree: ast.AST) -> set[str]:
    """Functions that create a task, or that drop the exceptions of several."""
    found = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            drops = name == "gather" and any(keyword.arg == "return_exceptions" for keyword in call.keywords)
            if name in ("create_task", "ensure_future", "TaskGroup") or drops:
                found.add(function.name)
    return found


def test_every_task_has_a_reader() -> None:
    found = {
        f"{file.relative_to(SOURCE)}:{name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for name in makers(ast.parse(file.read_text("utf-8")))
    }
    assert not found - ALLOWED.keys(), "use relevo.tasks, or say here who reads it"
    assert not ALLOWED.keys() - found


def test_it_would_be_seen() -> None:
    assert makers(ast.parse("def f():\n    asyncio.create_task(g())")) == {"f"}
    assert makers(ast.parse("async def f():\n    await asyncio.gather(a, return_exceptions=True)")) == {"f"}
    assert makers(ast.parse("async def f():\n    await asyncio.gather(a, b)")) == set()

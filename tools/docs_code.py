"""Reference pages that follow from the code's own words: errors, probes, the public interface, failures and tests."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec

from relevo import errors
from relevo.runtime import probes
from tools.failures import CATALOGUE, LATER, places_by_row

NOTE = "<!-- Written by `python -m tools.docs` from the code; a test holds that it is up to date. -->\n"

MODULES = {
    "relevo": "What an application imports. Names are loaded when they are first used.",
    "relevo.consumer": "Running consumers inside another process; `relevo consume` does the same.",
    "relevo.effects": "Acts outside, once: see [how](../how-to/do-something-outside-once.md).",
    "relevo.settings": "Settings as values.",
    "relevo.correlation": "What messages carry without being asked.",
    "relevo.ops.migrate": "`relevo migrate` as functions.",
    "relevo.testing": "For tests: see [test your code](../how-to/test-your-code.md).",
}
NAMES = {
    "relevo.consumer": ["ConsumerRunner"],
    "relevo.effects": [
        *("once", "Effects", "EffectRequest", "EffectRefused", "NotDone", "Done", "Unknown", "EffectRunner"),
        *("webhook", "verify_signature", "email", "SmtpServer"),
    ],
    "relevo.settings": ["load", "Settings"],
    "relevo.correlation": ["using", "current"],
    "relevo.ops.migrate": ["migrate", "pending", "check", "sql"],
}
INTERNAL = {"Event.of", "Consumer.routes", "Consumer.handlers"}
"""Without an underscore for other modules of ours, and no business of an application's."""


def pages() -> dict[str, str]:
    """File name to text."""
    return {"errors.md": _errors(), "probes.md": _probes(), "api.md": _api(), "test-matrix.md": _matrix()}


def _errors() -> str:
    tree = inspect.cleandoc(errors.__doc__ or "").partition("::\n\n")[2].partition("\n\nA message")[0]
    rows = ["| class | exit code | default message |", "|---|---|---|"]
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.RelevoError):
            rows.append(f"| `{name}` | {value.exit_code} | {_flat(value.__doc__)} |")
    warning = errors.ForgottenAwaitWarning
    return _page(
        "Errors",
        "Everything Relevo raises on purpose is a `RelevoError` from `relevo.errors`, classified by what the caller "
        "may do next. `except RelevoError` catches all of them; what a database driver raises about *your* statements "
        "stays the driver's own. A message says what happened and what to do; none carries a password. Exit codes are "
        "those of the [command line](exit-codes.md).\n",
        f"```text\n{inspect.cleandoc(tree)}\n```\n",
        "\n".join(rows) + "\n",
        f"`{warning.__name__}` is a warning, not an error: {_flat(warning.__doc__)} The pytest plugin fails the test "
        "it happens in.\n",
    )


def _probes() -> str:
    rows = ["| point | what has happened there |", "|---|---|"]
    rows += [f"| `{name}` | {text} |" for name, text in probes.KNOWN.items()]
    return _page(
        "Probes",
        "A probe is a named point at which a process may kill, freeze or cut off itself, for real: "
        '`RELEVO_PROBE="relay.confirmed=kill:3"` sends SIGKILL to the relay at the third visit of that point, '
        "`=freeze:1` SIGSTOP, `=cut:1` shuts down all its TCP connections; several are separated by commas. The "
        "process says so on stderr before it does it, so a test that kills can prove that it killed in the section it "
        "meant. Without the variable a probe costs one comparison. They are for tests, demonstrations and rehearsals; "
        "nothing sets the variable by itself.\n",
        "\n".join(rows) + "\n",
    )


def _matrix() -> str:
    found = places_by_row()
    parts = [
        "What breaks systems like this one, and which tests try it here. A test says so by `FAILURES row N` in its "
        "docstring; this page is made of those, with where it runs as far as its fixtures tell. A stack is SQLite with "
        "the embedded broker, PostgreSQL with Kafka, or PostgreSQL with RabbitMQ. Tests in `relevo.testing` are the "
        "broker conformance suite, which runs on every broker.\n"
    ]
    for title, rows in CATALOGUE.items():
        table = [f"## {title}\n", "| row | scenario and right behaviour | tests |", "|---|---|---|"]
        for number, text in rows.items():
            tests = "<br>".join(
                f"`{test}`{f' ({where})' if where else ''}" for test, where in sorted(found.get(number, {}).items())
            )
            tests = tests or ("a later version" if number in LATER else "**none yet**")
            table.append(f"| {number} | {text} | {tests} |")
        parts.append("\n".join(table) + "\n")
    return _page("Failures and their tests", *parts)


def _api() -> str:
    parts = [
        "Public names, with signatures and what they say of themselves. What is not on this page may change without "
        "notice. For the ports that adapters implement see `src/relevo/ports/`: each is a page whose docstrings are "
        "the contract.\n"
    ]
    for module_name, about in MODULES.items():
        module = import_module(module_name)
        parts += [f"## {module_name}\n", f"{about}\n"]
        for name in NAMES.get(module_name) or module.__all__:
            parts += _entry(name, getattr(module, name))
    return _page("Public names", *parts)


def _entry(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"### {name}\n\nThe error classes: [errors.md](errors.md).\n"
    elif isinstance(value, str):
        yield f"### {name}\n\nThe installed version, as text.\n"
    elif inspect.isclass(value):
        yield f"### {name}\n"
        if _has_own_init(value):
            yield _code(f"{name}{_signature(value)}")
        yield _doc(value)
        yield from _members(name, value)
    else:
        yield f"### {name}\n"
        yield _code(f"{name}{_signature(value)}")
        yield _doc(value)


def _has_own_init(cls: type) -> bool:
    return "__init__" in vars(cls) or dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct)


def _members(owner: str, cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith(("_", "test_")) or f"{owner}.{name}" in INTERNAL:
            continue
        function = getattr(member, "__func__", member)
        if isinstance(member, property):
            if member.__doc__:
                yield f"**`{owner}.{name}`**\n"
                yield _doc(member.fget)
        elif inspect.isfunction(function) and inspect.getdoc(function):
            overloads = typing.get_overloads(function) or [function]
            yield _code(
                "\n".join(f"{_async(function)}{owner}.{name}{_signature(each, method=True)}" for each in overloads)
            )
            yield _doc(function)


def _async(function: Any) -> str:
    return "async " if inspect.iscoroutinefunction(function) else ""


class _Text(str):
    """Printed as it is: ``inspect`` shows a text annotation in quotes."""

    def __repr__(self) -> str:
        return str(self)


def _signature(value: Any, *, method: bool = False) -> str:
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())
    if method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    parameters = [part for each in parameters for part in _unpacked(value, each)]
    parameters = [each.replace(annotation=_annotation(each.annotation), default=_default(each)) for each in parameters]
    returns = _annotation(signature.return_annotation)
    text = str(signature.replace(parameters=parameters, return_annotation=returns))
    return text.removesuffix(" -> None") if inspect.isclass(value) else text


def _unpacked(value: Any, parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """``**options: Unpack[Name]`` as the keywords that ``Name`` lists; none is required."""
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    if found is None:
        yield parameter
        return
    listed = vars(import_module(value.__module__))[found[1]]
    for name, hint in listed.__annotations__.items():
        annotation = getattr(hint, "__forward_arg__", hint)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=annotation)


def _annotation(annotation: Any) -> Any:
    if annotation is inspect.Signature.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Text(re.sub(r"\b(?:typing|collections\.abc|datetime|uuid|random|relevo(?:\.\w+)+)\.(?=[A-Z~])|~", "", text))


def _default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return default
    if default is ...:
        return _Text("...")
    text = repr(default)
    return _Text("…" if text.startswith("<") else text)


def _code(text: str) -> str:
    lines = []
    for line in text.splitlines():
        lines.append(line if len(line) <= 100 else _wrapped(line))
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _wrapped(line: str) -> str:
    """One parameter per line."""
    head, _, rest = line.partition("(")
    depth, current, parts, tail = 0, "", [], ""
    for index, character in enumerate(rest):
        if character == ")" and depth == 0:
            tail = rest[index:]
            break
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    parts.append(current.strip())
    return head + "(\n" + "".join(f"    {part},\n" for part in parts if part) + tail


def _doc(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return text.replace("::\n", ":\n").replace("``", "`") + "\n"


def _flat(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`").replace("|", "\\|")


def _page(title: str, *parts: str) -> str:
    return "\n".join([f"# {title}\n", NOTE, *parts]).rstrip() + "\n"

"""Every public function can be asked for its types: typing.get_type_hints is what documentation and checkers call."""

import inspect
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULES = (
    "rootdk", "rootdk.audit", "rootdk.distributed", "rootdk.integrations", "rootdk.lab.checks", "rootdk.lab.report",
    "rootdk.lab.training", "rootdk.scaling", "rootdk.theory", "rootdk.torch",
)  # fmt: skip


def public_functions(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and their methods and properties, by name, that the module offers."""
    for name in getattr(module, "__all__", None) or vars(module):
        offered = getattr(module, name)
        if name.startswith("_") or isinstance(offered, ModuleType) or not callable(offered):
            continue
        yield name, offered
        for method, member in vars(offered).items() if inspect.isclass(offered) else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function) and not method.startswith("_"):
                yield f"{name}.{method}", function


def unresolved(module: Any) -> list[str]:
    names = []
    for name, function in public_functions(module):
        try:
            typing.get_type_hints(function)
        except NameError as error:
            names.append(f"{name}: {error}")
    return names


@pytest.mark.parametrize("module", MODULES)
def test_types_resolve(module: str) -> None:
    loaded = import_module(module)
    assert sum(1 for _ in public_functions(loaded)) >= 3
    assert unresolved(loaded) == []


def test_the_test_above_can_fail() -> None:
    def function(query: "Absent") -> None:  # type: ignore[name-defined]  # noqa: F821
        """Names a type that is nowhere."""

    class Kind:
        def method(self) -> "Absent":  # type: ignore[name-defined]  # noqa: F821
            """The same in a method."""

    module = SimpleNamespace(function=function, Kind=Kind)
    absent = "name 'Absent' is not defined"
    assert unresolved(module) == [f"function: {absent}", f"Kind.method: {absent}"]

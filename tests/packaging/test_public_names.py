"""Every public name says what it is, with an example that runs, and its types: get_type_hints is what checkers call."""

import doctest
import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULES = (
    "rootdk", "rootdk.audit", "rootdk.distributed", "rootdk.integrations", "rootdk.jax", "rootdk.lab.checks",
    "rootdk.lab.report", "rootdk.lab.training", "rootdk.scaling", "rootdk.theory", "rootdk.torch",
)  # fmt: skip


def offered(module: Any) -> Iterator[tuple[str, Any]]:
    """Functions and classes that the module offers by name; whole modules stand in MODULES themselves."""
    for name in module.__all__:
        if not isinstance(getattr(module, name), ModuleType) and callable(getattr(module, name)):
            yield name, getattr(module, name)


def public_functions(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and their methods and properties, by name, that the module offers."""
    for name, function_or_class in offered(module):
        yield name, function_or_class
        for method, member in vars(function_or_class).items() if inspect.isclass(function_or_class) else ():
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

    module = SimpleNamespace(function=function, Kind=Kind, __all__=["function", "Kind"])
    absent = "name 'Absent' is not defined"
    assert unresolved(module) == [f"function: {absent}", f"Kind.method: {absent}"]


# A spec of whatever experiment was named. The others have types that only a checker is told, because at run time they
# would load torch or a trainer; tests/packaging/test_types.py asks one.
OF_ANY_KIND = {"lightning_callback", "spec_from_dict", "trainer_callback", "watch"}


def of_any_kind(module: Any) -> set[str]:
    """Functions that do not say what they return."""
    functions = ((name, thing) for name, thing in public_functions(module) if not inspect.isclass(thing))
    return {name for name, function in functions if typing.get_type_hints(function).get("return", Any) is Any}


@pytest.mark.parametrize("module", MODULES)
def test_functions_say_what_they_return(module: str) -> None:
    assert of_any_kind(import_module(module)) <= OF_ANY_KIND


def test_a_function_that_does_not_say_would_be_seen() -> None:
    def function():  # type: ignore[no-untyped-def]
        """Returns nobody knows what."""

    assert of_any_kind(SimpleNamespace(function=function, __all__=["function"])) == {"function"}


def without_example(module: Any) -> list[str]:
    """Names whose docstring has no line to run; those that have one are run by --doctest-modules."""
    finder = doctest.DocTestParser()
    return [name for name, thing in offered(module) if not finder.get_examples(inspect.getdoc(thing) or "")]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_example_that_runs(module: str) -> None:
    loaded = import_module(module)
    assert without_example(loaded) == []
    # doctest looks at the module in which a thing is defined, so that must be one of the package.
    for name, thing in offered(loaded):
        assert inspect.unwrap(thing).__module__.startswith("rootdk"), name


def test_a_name_without_an_example_would_be_seen() -> None:
    def function() -> None:
        """Says what it does, and shows nothing."""

    assert without_example(SimpleNamespace(function=function, __all__=["function"])) == ["function"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rootdk.torch.use", "rootdk.torch"),
        ("rootdk.distributed.attention", "rootdk.distributed.attention"),
        ("rootdk.watch(None)", "watch"),
    ],
)
def test_without_torch_the_error_says_how_to_get_it(name: str, expected: str) -> None:
    lines = (
        "import sys; sys.modules['torch'] = None; import rootdk",
        f"try: {name}",
        "except ImportError as error: print(error)",
        "rootdk.theory.predict; rootdk.audit.THRESHOLDS; rootdk.lab.training.shipped; rootdk.lab.checks.LEDGER",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    message = f"{expected}: needs torch, which is not installed; get it with: pip install 'rootdk[torch]'\n"
    assert (done.stdout, done.stderr) == (message, "")

"""What every test may use: a random generator of its own, and what notes the calls that reach the kernel or rootdk."""

import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_kernel import RecordingKernel

import rootdk
from rootdk import backends

# Where there is no GPU, Triton runs kernels in Python; it asks when it is imported, which torch may do at any time.
GPU = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))
NO_GPU = "no GPU"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
# Programs of jax are compiled for one small call each: XLA's own passes run, LLVM's are left out. Read when jax starts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()


# Where processes share the files, these are begun first: what is left for the end is short, and none waits for another.
LONGEST = (
    "test_explorer_in_a_browser",
    "test_distributed_faults",
    "test_site",
    "test_hostile_checkpoints",
    "test_bench_sections",
    "test_training_engine",
    "test_processes",
    "test_training_ray",
    "test_explorer_connections",
    "test_kernel_interrupt",
    "test_jax_transforms",
    "test_bias_gradient",
    "test_distributed_ring",
    "test_interruption",
    "test_explorer_chapters_in_a_browser",
    "test_figures",
    "test_triton",
    "test_claims_training",
    "test_triton_compiled",
    "test_watch_gpu",
    "test_integrations_training",
    "test_torch_compile",
    "test_theory_quadrature",
    "test_examples",
    "test_documents",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for item in items:
        if not GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    missed = sum(isinstance(report.longrepr, tuple) and NO_GPU in report.longrepr[2] for report in skipped)
    if missed:
        terminalreporter.write_line(f"no GPU: {missed} tests not run")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone: every run sees the same, no two tests share them."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingKernel]:
    """For tests of what is handed down, apart from what is computed."""
    stand_in = RecordingKernel()
    monkeypatch.setitem(sys.modules, "rootdk._kernel", stand_in)
    backends.kernel.cache_clear()
    yield stand_in
    backends.kernel.cache_clear()


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every call that a model makes to rootdk: unwatched, it may well run on torch's own kernel."""
    from rootdk.torch import functional

    calls: list[dict[str, Any]] = []

    def noted(query: Any, key: Any, value: Any, **options: Any) -> Any:
        calls.append(options)
        return rootdk.attention(query, key, value, **options)

    monkeypatch.setattr(functional, "attention", noted)
    return calls


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For small models: on a busy machine torch's threads wait for each other longer than the work takes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for a file, not for all: while it runs, asyncio takes this thread to be inside a loop of its own."""
    from visit import launched

    with launched("chromium") as started:
        yield started


@pytest.fixture(scope="module")
def _opened(browser: Any, server: Any) -> Iterator[Any]:
    """One page for many tests: reading plotly.js is most of what a new one costs."""
    from visit import Visit

    visit = Visit(browser, 1280, server=server.address)
    yield visit
    visit.page.context.close()


@pytest.fixture
def visit(_opened: Any) -> Iterator[Any]:
    """A visit to the explorer of the module's `server`, on which nothing left and nothing was complained of."""
    yield _opened
    complaints, _opened.complaints[:] = list(_opened.complaints), []
    assert _opened.outside == []
    assert complaints == []

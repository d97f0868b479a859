"""What every test may use: a random generator of its own, and a stand-in for the kernel that notes what it is given."""

import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from helpers import RecordingKernel

from rootdk import _backends


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone: every run sees the same, no two tests share them."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingKernel]:
    """For tests of what is handed down, apart from what is computed."""
    stand_in = RecordingKernel()
    monkeypatch.setitem(sys.modules, "rootdk._kernel", stand_in)
    _backends.kernel.cache_clear()
    yield stand_in
    _backends.kernel.cache_clear()

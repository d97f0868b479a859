"""spec -> result, with a cache and a word on how far it has come."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from .cache import Cache
from .experiments import EXPERIMENTS, name_of
from .result import Result

Progress = Callable[[str, float], None]


def run(spec: Any, *, cache: Cache | None = None, progress: Progress = lambda _name, _share: None) -> Result:
    """Run one experiment, or take its result out of the cache.

    progress is called with the experiment's name and the share that is done, from 0 to 1. The same spec gives the same
    numbers; seconds is how long the run took that made them.

    >>> from rootdk.lab.checks import VarianceSpec
    >>> result = run(VarianceSpec(d_k=(16,), laws=("sign",), rows=1000))
    >>> [one.quantity for one in result.comparisons], result.comparisons[1].theory
    (['score mean', 'score variance'], 16.0)
    """
    name = name_of(spec)
    progress(name, 0.0)
    kept = cache.get(spec) if cache else None
    if kept is None:
        start = time.perf_counter()
        found = EXPERIMENTS[name].function(spec, lambda share: progress(name, share))
        kept = replace(found, seconds=round(time.perf_counter() - start, 3))
        if cache:
            cache.put(spec, kept)
    progress(name, 1.0)
    return kept


def run_all(
    specs: Iterable[Any], *, cache: Cache | None = None, progress: Progress = lambda _name, _share: None
) -> list[Result]:
    """`run` one after the other: the operator uses all cores by itself."""
    return [run(spec, cache=cache, progress=progress) for spec in specs]

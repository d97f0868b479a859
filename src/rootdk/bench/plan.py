"""The steps of a run, section by section, in the order in which they are taken."""

from collections.abc import Iterator

from rootdk.bench import (
    beside,
    decode,
    explorer,
    half,
    imports,
    memory,
    options,
    pairs,
    race,
    ring,
    tiny,
    watched,
)
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import MATRIX, QUICK

QUICK_MEMORY_KEYS = 16_384


def steps(setting: Setting) -> Iterator[Step]:
    """All steps of the sections that were asked for."""
    sections = setting.sections
    shapes, budget = QUICK if setting.quick else MATRIX, setting.seconds(6.0, 0.5)
    measured = "measure" in sections
    if sections & {"forward", "measure"}:
        # Without "forward" only torch stays: measure is held against its unmeasured call.
        chosen = [peer for peer in setting.peers if "forward" in sections or peer.name == "torch"]
        for shape in shapes:
            yield Step(
                "forward",
                shape.name,
                lambda shape=shape: race.forward(shape, chosen, measured=measured, budget=budget),  # type: ignore[misc]
            )
    if measured:
        yield from pairs.steps(setting, shapes)
    if "backward" in sections:
        for shape in shapes:
            yield Step(
                "backward",
                f"{shape.name}, gradient",
                lambda shape=shape: race.backward(shape, setting.peers, budget=budget),  # type: ignore[misc]
            )
    for section, of_section in (("half", half), ("decode", decode), ("options", options), ("tiny", tiny)):
        if section in sections:
            yield from of_section.steps(setting)
    if "beside" in sections:
        yield from beside.steps(setting)
    if "watch" in sections:
        yield from watched.steps(setting)
    if "ring" in sections:
        yield from ring.steps(setting)
    if "explorer" in sections:
        yield from explorer.steps(setting)
    if "import" in sections:
        yield from imports.steps(setting)
    if "memory" in sections:
        keys = QUICK_MEMORY_KEYS if setting.quick else memory.KEYS
        yield Step("memory", f"memory at {keys} keys", lambda: memory.in_fresh_process(keys))

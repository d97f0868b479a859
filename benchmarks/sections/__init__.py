"""The sections, one file each. A new file is found by itself: it needs a tuple SECTIONS, and nothing else a change."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from benchmarks.section import Report, Section, Verdict


@cache
def all_sections() -> dict[str, Section]:
    """By name, in the order of their files."""
    files = sorted(module.name for module in iter_modules(__path__))
    return {section.name: section for file in files for section in import_module(f"{__name__}.{file}").SECTIONS}


def judge(report: Report) -> list[Verdict]:
    """One record per target of the sections that were run: what is wanted, what was reached, whether it is met.

    A target that could not be judged is there too, with the reason. A quick report shows what it reached and judges
    nothing: the targets are about the shapes of a full one.
    """
    verdicts = [verdict for name in report["sections"] for verdict in all_sections()[name].judge(report)]
    if report.get("quick"):
        return [verdict | {"met": None, "why": verdict["why"] or "quick"} for verdict in verdicts]
    return verdicts

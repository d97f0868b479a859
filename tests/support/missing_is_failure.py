"""One rule for the whole suite: where CI is set, a missing dependency is a failure and not a skip.

A skipped test looks green. `pytest.importorskip` is right on a laptop without torch and wrong where everything is
meant to be installed.
"""

import os
import re
from collections.abc import Generator

import pytest

MISSING_MODULE = re.compile(r"could not import|No module named|is not installed", re.IGNORECASE)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI") or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if MISSING_MODULE.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped for want of a module, and CI is set: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report

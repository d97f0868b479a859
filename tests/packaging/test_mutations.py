"""The list of mutations stays true while the source moves; tests/mutations.py itself runs them."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTATIONS = runpy.run_path(str(ROOT / "tests" / "mutations.py"))["MUTATIONS"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.slip)
def test_a_mutation_has_its_text_and_its_tests(mutation) -> None:
    assert (ROOT / mutation.file).read_text("utf-8").count(mutation.old) == 1
    assert mutation.new != mutation.old
    assert [test for test in mutation.tests if not (ROOT / test).is_file()] == []


def test_there_are_sixty() -> None:
    assert len({(mutation.file, mutation.old) for mutation in MUTATIONS}) >= 60

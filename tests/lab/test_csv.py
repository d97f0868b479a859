"""--csv wherever there is --json: the same numbers, as a table."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from rootdk.cli import NAMES, main

# What is asked, and how many rows its JSON says there are.
COMMANDS = {
    "audit": ([], lambda plain: sum(len(layer["heads"]) for layer in plain["layers"])),
    "claims": (["--id", "7", "--id", "8"], lambda plain: sum(len(claim["evidence"]) for claim in plain["claims"])),
    "info": ([], len),
    "look": (["--d-k", "8", "--rows", "16"], lambda plain: len(plain["looks"])),
    "plan": (["--tokens", "4096", "--ranks", "4", "--flops", "1e12", "--bandwidth", "1e10"], lambda plain: 2),
    "predict": (["--d-k", "8", "--d-k", "16", "--keys", "64"], len),
    "prove": ([], lambda plain: len(plain["measured"])),
}


def output(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_of_what_the_json_holds(name: str) -> None:
    arguments, count = COMMANDS[name]
    rows = list(csv.DictReader(io.StringIO(output(name, *arguments, "--csv"))))
    plain = json.loads(output(name, *arguments, "--json"))
    assert len(rows) == count(plain)
    assert all(None not in row and None not in row.values() for row in rows)
    first = {"audit": lambda: plain["layers"][0]["heads"][0]["max_logit"],
             "look": lambda: plain["looks"][0]["saturated"],
             "predict": lambda: plain[0]["scale"], "plan": lambda: plain["forward"]["seconds"],
             "prove": lambda: plain["measured"]["q1^2 k1^2"]["mean"], "info": lambda: plain["rootdk"],
             "claims": lambda: plain["claims"][0]["evidence"][0]["measured"]}[name]()  # fmt: skip
    assert str(first) in rows[0].values()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("explore", "figures")])
def test_both_at_once_are_refused(name: str) -> None:
    arguments = COMMANDS.get(name, ([], None))[0]
    for order in (("--json", "--csv"), ("--csv", "--json")):
        assert "--json and --csv exclude each other" in output(name, *arguments, *order, code=2)

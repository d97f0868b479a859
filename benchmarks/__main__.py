"""`python benchmarks`: the command line of command.py.

Python has put this folder first on the path of imports, or with -m the folder that the user stands in. Both go, and
`benchmarks` is found once from where it lies: nothing else is ever imported from either of them.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
import benchmarks  # noqa: E402, F401

del sys.path[0]

from benchmarks.command import main  # noqa: E402

main()

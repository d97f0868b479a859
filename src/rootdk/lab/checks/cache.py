"""Results kept by content: the same spec run by the same code is not run twice.

The name of an entry is a hash of the experiment, the spec, and every file of the installed package, so that a result
of other code is never taken for this one's. ROOTDK_CACHE names the folder; without it the platform's own place is used.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rootdk import version
from rootdk.errors import RootdkError
from rootdk.files import cache_folder, write_atomically
from rootdk.untrusted import read_json

from .experiment import name_of
from .result import Result

Note = Callable[[str], None]


class Cache:
    """Results in a folder, one JSON file each. What can not be read or written is passed over, with a `note`."""

    def __init__(self, place: Path | None = None, note: Note = lambda _text: None) -> None:
        self.place, self.note = place or cache_folder(), note

    def path(self, spec: Any) -> Path:
        """The file that the result of this spec has or would have."""
        asked = json.dumps([name_of(spec), asdict(spec), _code()], sort_keys=True)
        return self.place / f"{name_of(spec)}-{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"

    def get(self, spec: Any) -> Result | None:
        """The kept result, or None if there is none that can be used."""
        path = self.path(spec)
        try:
            kept = Result.from_dict(read_json(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.note(f"cache: cannot read {path}: {error.strerror or error}; running again")
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RootdkError):
            self.note(f"cache: {path} is damaged; running again")
            return None
        if json.dumps(kept.spec) != json.dumps(asdict(spec)):
            self.note(f"cache: {path} belongs to another spec; running again")
            return None
        return kept

    def put(self, spec: Any, result: Result) -> None:
        """Keep it; a reader sees the whole file or none."""
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path(spec), json.dumps(result.to_dict(), allow_nan=False))
        except OSError as error:
            self.note(f"cache: cannot write to {self.place}: {error.strerror or error}; the result is not kept")


@functools.cache
def _code() -> str:
    """A hash of the package's files: Python, and the compiled module whose last digits the results carry."""
    home, total = Path(version.__file__).parent, hashlib.sha256()
    for file in sorted(home.rglob("*")):
        if file.suffix in {".py", ".so", ".pyd"}:
            total.update(file.relative_to(home).as_posix().encode() + b"\0" + file.read_bytes())
    return f"{version.__version__}-{total.hexdigest()}"

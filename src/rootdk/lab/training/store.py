"""Finished training runs kept by content, one JSON file each; and the states of unfinished ones, while they last.

Unlike the cache of the other experiments, which a full disk only makes slower, the store is where hours of work end
up: what it cannot write is an error, and what is already there stays.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rootdk import version as package
from rootdk.errors import RootdkError
from rootdk.files import BINARY, cache_folder, read_json, write_atomically
from rootdk.scaling import fingerprint

from .run import Run, RunSpec

# The files that decide the numbers of a run. Reports, commands and code that only arranges runs may change without a
# rerun.
_DECIDES = ("options.py", "checks.py", "attention.py", "reading.py", "scaling.py", "torch", "backends", "lab/training")
_ARRANGES = {"__init__", "engine", "ray_engine", "results", "run", "store", "sweep"}


class StoreError(RootdkError):
    """The folder of runs cannot be used, or no longer."""


class Store:
    """Runs in a folder. A file that is damaged is skipped with a `note`, and its run is run again.

    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = Store(Path(place))
    ...     store.get(RunSpec()) is None, store.path(RunSpec()).name[:14]
    (True, 'recall-sqrt-64')
    """

    def __init__(self, place: Path | None = None, note: Callable[[str], None] = lambda _text: None) -> None:
        self.place, self.note = place or cache_folder() / "training", note

    def path(self, spec: RunSpec) -> Path:
        """The file that this run has or would have."""
        # A registered rule is identified by its factors: the same name may stand for another rule later.
        identity = json.dumps([spec.to_dict(), code(), *filter(None, [fingerprint(spec.rule)])], sort_keys=True)
        rule = re.sub(r"[^\w.-]+", "_", spec.rule)
        name = f"{spec.task}-{rule}-{spec.d_k}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
        return self.place / f"{name}.json"

    def state(self, spec: RunSpec) -> Path:
        """The file for the state of this run while it is unfinished."""
        return self.path(spec).with_suffix(".state")

    def open(self) -> None:
        """Make the folder and see that it can be written to: a run that cannot be kept is not worth starting."""
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.place):
                pass
        except OSError as error:
            raise StoreError(f"runs: cannot write to {self.place}: {reason(error)}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Open the folder for this study alone while the block lasts: two studies would write the same states.

        It is a lock of the system, which ends with the process in any case; a file that remains is no lock.
        """
        self.open()
        path = self.place / ".lock"
        try:
            handle = _lock(path)
        except BlockingIOError as error:
            raise StoreError(
                f"runs: {self.place} is in use by another training study, process {error.strerror}; wait until it has "
                "ended, or keep these runs in another folder"
            ) from None
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}:
                raise StoreError(f"runs: cannot lock {path}: {reason(error)}") from error
            self.note(f"runs: {self.place} cannot be locked: {reason(error)}; start no second training study on it")
            handle = None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # while it is held, so that the file is ours; Windows does not remove an open file
            if handle is not None:
                os.close(handle)

    def get(self, spec: RunSpec) -> Run | None:
        """The kept run, or None if there is none that can be used."""
        path = self.path(spec)
        try:
            run = Run.from_dict(read_json(path))
            _ = run.last
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"runs: cannot read {path}: {reason(error)}") from error
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RootdkError):
            self.note(f"runs: {path} is damaged; running again")
            return None
        if run.spec != spec:
            self.note(f"runs: {path} belongs to another spec; running again")
            return None
        return run

    def put(self, run: Run) -> None:
        """Keep it, whole or not at all, and drop the state from which it would have gone on."""
        try:
            write_atomically(self.path(run.spec), json.dumps(run.to_dict(), allow_nan=False))
        except OSError as error:
            raise StoreError(
                f"runs: cannot write to {self.place}: {reason(error)}; the runs that are finished are kept there"
            ) from error
        self._drop_state(run.spec)

    def forget(self, spec: RunSpec) -> None:
        """Drop the run and its state."""
        try:
            self.path(spec).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"runs: cannot remove {self.path(spec)}: {reason(error)}") from error
        self._drop_state(spec)

    def _drop_state(self, spec: RunSpec) -> None:
        with contextlib.suppress(OSError):
            self.state(spec).unlink()
        # Files of a process that was killed while it wrote.
        for part in self.place.glob(f".{self.path(spec).stem}.*.part"):
            with contextlib.suppress(OSError):
                part.unlink()


def _lock(path: Path) -> int:
    """An open file that is locked and has this name. BlockingIOError if it is taken, with the process that has it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
        try:
            _take(handle)
            # The previous holder may have removed the file after it was opened here: then another process can lock the
            # next one.
            if _is(path, handle):
                with contextlib.suppress(OSError):  # on a full disk the holder is not named
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except BlockingIOError as error:
            holder = os.read(handle, 20).decode(errors="replace").partition(" ")[0] or "unknown"
            os.close(handle)
            raise BlockingIOError(error.errno, holder) from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _take(handle: int) -> None:
    """The system's lock on a file that was just opened, or a BlockingIOError at once."""
    if sys.platform == "win32":
        import msvcrt

        # A locked byte cannot be read on Windows, but others must read who has the lock: so a byte far behind is
        # locked.
        os.lseek(handle, 2**30, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, os.strerror(errno.EAGAIN)) from error
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def reason(error: OSError) -> str:
    """The system's words."""
    return error.strerror or str(error)


@functools.cache
def code() -> str:
    """A hash of what decides the numbers of a run: files of the package, and the versions of its dependencies.

    Python's own version is among them because the text that is learned is Python's own.
    """
    home = Path(os.fspath(package.__file__)).parent
    deciding = [home / name for name in _DECIDES]
    python = [file for path in deciding for file in (path.rglob("*.py") if path.is_dir() else [path])]
    compiled = [file for file in home.glob("_kernel*") if file.suffix in {".so", ".pyd"}]
    total = hashlib.sha256()
    for file in sorted([*python, *compiled]):
        if not (file.parent.name == "training" and file.stem in _ARRANGES):
            total.update(file.relative_to(home).as_posix().encode() + b"\0" + file.read_bytes())
    try:
        libraries = [f"{name} {version(name)}" for name in ("torch", "numpy")]
    except PackageNotFoundError:
        libraries = []
    return "-".join([package.__version__, *libraries, platform.python_version(), total.hexdigest()])

"""What the processes below one are, and what they listen on: read from /proc, so that nothing has to be installed."""

from pathlib import Path

LISTENS = "0A"  # the state, in the system's own table of sockets


def below(root: int) -> list[int]:
    """All that a process has started, directly or not, and that still runs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            state, parent = _state(int(entry.name))
            if state not in "ZX":
                parents[int(entry.name)] = parent
    pids, front = [], {root}
    while front:
        front = {pid for pid, parent in parents.items() if parent in front}
        pids += front
    return pids


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def runs(pid: int) -> bool:
    return _state(pid)[0] not in "ZX"


def listening(pid: int) -> set[str]:
    """The addresses, in the system's words, on which a process accepts connections."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                addresses.add(fields[1].partition(":")[0])
    return addresses


# 127.0.0.1, the same in IPv6's notation for IPv4, and ::1.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def _state(pid: int) -> tuple[str, int]:
    try:
        # The name of a program may hold anything, so count from its last bracket.
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return state, int(parent)

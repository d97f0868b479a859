"""A digest of all that the compiled module is made of. The build writes it into the module; the tests compare.

python bindings/sources.py FILE     write a C++ file that holds the digest
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def digest(root: Path = ROOT) -> str:
    """Of the names and contents of every C++ file and of what says how they are compiled."""
    files = [
        root / "CMakeLists.txt",
        root / "kernel/targets.txt",
        *(f for room in ("kernel", "bindings") for f in (root / room).glob("*.[ch]*")),
    ]
    whole = hashlib.sha256()
    # By name as text: paths of Windows are sorted without regard to capitals.
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        content = file.read_bytes()
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()


if __name__ == "__main__":
    text = f'namespace rootdk {{\nextern const char* const source_digest = "{digest()}";\n}}\n'
    Path(sys.argv[1]).write_text(text, "utf-8", newline="\n")

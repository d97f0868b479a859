"""The libraries that rootdk is held against, one file each. None is needed; the report says who is absent and why."""

from collections.abc import Sequence
from importlib import import_module

from rootdk.bench.peers.peer import Peer

NAMES = ("torch", "onnxruntime", "jax", "openvino", "numpy")


def open_peers(names: Sequence[str], threads: int) -> tuple[list[Peer], dict[str, str]]:
    """Peers that are ready, and for each of the others why it is not."""
    ready: list[Peer] = []
    absent: dict[str, str] = {}
    for name in names:
        try:
            ready.append(import_module(f"rootdk.bench.peers.{name}_peer").open_peer(threads))
        except ImportError as error:
            absent[name] = f"not installed ({error})"
        except (OSError, RuntimeError) as error:
            absent[name] = f"does not start ({error})"
    return ready, absent

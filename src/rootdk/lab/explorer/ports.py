"""A socket on 127.0.0.1 and on nothing else."""

import errno
import socket

from rootdk.errors import ArgumentError

HOST = "127.0.0.1"
PORT = 8765
_TRIES = 100


def listening(first: int = PORT) -> socket.socket:
    """A socket on `first`, or on the next port that is free.

    >>> with listening(0) as one, listening(one.getsockname()[1]) as other:
    ...     one.getsockname()[0], one.getsockname()[1] < other.getsockname()[1]
    ('127.0.0.1', True)
    """
    for port in range(first, min(first + _TRIES, 65536)):
        # TCP by name: asyncio sends small answers at once (TCP_NODELAY) on such a socket alone. Without it, head and
        # body of an answer wait 40 ms for each other.
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # The port of a server that has just stopped is free again at once; one that still listens stays taken.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, port))
            found.listen(128)
        except OSError as error:
            found.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise ArgumentError(f"port: {HOST}:{port} cannot be used: {error.strerror}") from error
        return found
    raise ArgumentError(f"port: must have a free one among {first} to {min(first + _TRIES, 65536) - 1}, all are taken")

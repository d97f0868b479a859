"""Connections of the explorer that do not behave: slow ones, many of them, and ones that are cut."""

import asyncio
import contextlib
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import explorer_stand_in as stand_in
import httpx
import pytest
from explorer_process import STAND_IN, Served

from rootdk.lab.explorer.chapter import View
from rootdk.lab.explorer.endpoints import AT_ONCE
from rootdk.lab.explorer.server import MOST_CONNECTIONS, application

PATIENCE = "1.5"


@pytest.fixture
def server() -> Iterator[Served]:
    with Served(*STAND_IN, "0", PATIENCE) as running:
        yield running


def connected(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def answer_to(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it; the timeout of the socket is the guard."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def head_of(server: Served, length: int) -> bytes:
    here = f"127.0.0.1:{server.port}"
    return (
        f"POST /api/model HTTP/1.1\r\nHost: {here}\r\nOrigin: http://{here}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def test_a_request_that_does_not_come_is_not_waited_for(server: Served) -> None:
    with contextlib.ExitStack() as kept:
        begun = {}
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127"):
            begun[sent] = kept.enter_context(connected(server))
            begun[sent].sendall(sent)
        for sent, connection in begun.items():
            assert answer_to(connection).partition(b"\r\n")[0] in (b"HTTP/1.1 408 Request Timeout", b""), sent
    assert server.stop()[1] == "interrupted\n"


def test_a_body_that_drips_is_not_waited_for(server: Served) -> None:
    for path in (b"/api/model", b"/"):  # a body that is read, and one that nobody reads
        with connected(server) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(head_of(server, 10_000).replace(b"/api/model", path, 1))
            for _ in range(600):  # a minute, if nobody ends it
                connection.sendall(b" ")
                time.sleep(0.1)
            pytest.fail(f"{path!r}: a body of one byte in a tenth of a second was waited for")
    assert server.stop()[1] == "interrupted\n"


def test_a_request_in_time_is_answered_however_long_it_takes(server: Served) -> None:
    """What is limited is how long a request may come, not how long its answer takes, nor how many come one by one."""
    with httpx.Client(base_url=server.address) as client:
        slow = client.get("/api/view/slow", params={"seconds": "2.5"}, timeout=60)
        assert slow.status_code == 200
        for _ in range(3):
            time.sleep(0.7)
            assert client.get("/api/chapters").status_code == 200


def test_a_thousand_open_connections_bring_no_traceback(server: Served) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.platform.startswith("linux"):  # few files for the server, as in a careful shell
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (MOST_CONNECTIONS, hard))
    with contextlib.ExitStack() as kept:
        for number in range(1000):
            connection = kept.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", server.port))
            if number % 2:
                with contextlib.suppress(OSError):
                    connection.send(b"GET / HTTP/1.1\r\n")
        # One that asks properly gets its answer when those that say nothing have been sent away.
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.HTTPError):
                assert httpx.get(server.address, timeout=60).status_code == 200
                break
            assert time.monotonic() < until
    code, said = server.stop()
    assert code == 130
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 2, said


def test_an_upload_that_is_cut_is_nothing_to_tell(server: Served) -> None:
    for linger in (None, struct.pack("ii", 1, 0)):  # closed, and reset
        with connected(server) as connection:
            connection.sendall(head_of(server, 100_000) + b'{"layers": [')
            if linger:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert httpx.get(server.address).status_code == 200
    assert server.stop() == (130, "interrupted\n")


def test_ctrl_c_does_not_wait_for_a_computation(server: Served) -> None:
    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{server.address}api/view/slow", params={"seconds": "600"}, timeout=60)

    worker = threading.Thread(target=ask)
    worker.start()
    while httpx.get(f"{server.address}api/view/begun").json()["numbers"][0]["value"] == 0:
        time.sleep(0.02)
    assert server.stop() == (130, "interrupted\n")
    worker.join()


def test_one_connection_too_many_is_cut_and_the_others_stay() -> None:
    ask = b"GET /api/chapters HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n"
    with Served(*STAND_IN, "0", "60") as server, contextlib.ExitStack() as kept:
        taken = [kept.enter_context(connected(server)) for _ in range(MOST_CONNECTIONS)]
        with connected(server) as refused:
            assert answer_to(refused) == b""  # long before the 60 s for a request are over: it has no place
        for number in (0, -1):  # the first and the last that were taken
            taken[number].sendall(ask % server.port)
            assert answer_to(taken[number]).startswith(b"HTTP/1.1 200 OK\r\n")
        # Both have ended, so there is a place again.
        with connected(server) as later:
            later.sendall(ask % server.port)
            assert answer_to(later).startswith(b"HTTP/1.1 200 OK\r\n")


class Counter:
    """A computation that ends when as many as are allowed have met in it; `most` is how many ever were in it."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.changing = threading.Lock()
        self.met = threading.Barrier(AT_ONCE)

    def view(self, *_: Any) -> View:
        with self.changing:
            self.running += 1
            self.most = max(self.most, self.running)
        self.met.wait(timeout=60)
        time.sleep(0.2)  # time for one more to come in, if it may
        with self.changing:
            self.running -= 1
        return View((), (), "")


def served(counter: Counter) -> httpx.AsyncClient:
    """The application in this process, with one chapter that counts, which is that of a model too."""
    app = application(8765, (replace(stand_in.MODEL, compute=counter.view, show_audit=counter.view),))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8765", timeout=120)


def test_so_many_views_are_computed_at_once_and_no_more() -> None:
    counter = Counter()

    async def ask() -> list[httpx.Response]:
        async with served(counter) as client:
            return await asyncio.gather(*(client.get("/api/view/model") for _ in range(3 * AT_ONCE)))

    assert [answer.status_code for answer in asyncio.run(ask())] == [200] * (3 * AT_ONCE)
    assert counter.most == AT_ONCE


def test_so_many_audits_are_held_at_once_and_no_more() -> None:
    """The body of one more is not read before the view of another is done."""
    counter, begun, done = Counter(), [], []

    async def ask() -> list[httpx.Response]:
        async with served(counter) as client:

            async def upload(number: int) -> httpx.Response:
                async def body() -> Any:
                    begun.append(number)
                    assert len(begun) - len(done) <= AT_ONCE
                    yield b"{}"

                headers = {"Origin": "http://127.0.0.1:8765", "Content-Type": "application/json"}
                answer = await client.post("/api/model", content=body(), headers=headers)
                done.append(number)
                return answer

            return await asyncio.gather(*(upload(number) for number in range(3 * AT_ONCE)))

    assert [answer.status_code for answer in asyncio.run(ask())] == [200] * (3 * AT_ONCE)
    assert (counter.most, len(begun)) == (AT_ONCE, 3 * AT_ONCE)

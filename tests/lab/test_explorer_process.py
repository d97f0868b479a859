"""`rootdk explore` as a process: its address, a port that is taken, bytes that no client would send, Ctrl-C."""

import signal
import socket
import sys
import threading
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from explorer_process import STAND_IN, Served, explore, free_port

from rootdk.cli import main


def test_it_serves_until_ctrl_c() -> None:
    with Served(*explore(free_port())) as served, httpx.Client(base_url=served.address) as client:
        assert served.said == f"The page is at {served.address} (Ctrl-C stops it).\n"
        chapters = client.get("/api/chapters").json()["chapters"]
        assert client.get(f"/api/view/{chapters[0]['id']}").status_code == 200
        # The client still holds its connection, as an open page would.
        assert served.stop() == (130, "interrupted\n")


def test_a_taken_port_gives_the_next() -> None:
    with Served(*explore(free_port())) as first, Served(*explore(first.port)) as other:
        assert other.port > first.port
        for server in (first, other):
            assert httpx.get(server.address).status_code == 200
        code, said = other.stop()
        assert code == 130
        assert said.startswith(f"Port {first.port} is taken: using {other.port}.\n")
        # Nobody is mistaken for the other.
        assert httpx.get(first.address, headers={"Host": f"127.0.0.1:{other.port}"}).status_code == 421


def test_its_port_is_free_again_at_once() -> None:
    port = free_port()
    for _ in range(2):
        with Served(*STAND_IN, str(port)) as served, httpx.Client(base_url=served.address) as client:
            assert served.port == port
            assert client.get("/").status_code == 200
            assert served.stop()[0] == 130


@pytest.fixture(scope="module")
def server():
    with Served(*STAND_IN, "0") as served:
        yield served


def test_only_this_machine_is_answered(server: Served) -> None:
    if sys.platform.startswith("linux"):  # where all of 127.0.0.0/8 is this machine
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port), timeout=5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server_address(), server.port), timeout=5)


def server_address() -> str:
    """What other machines know this one by; the loopback's other name where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    "path",
    [
        b"/static/../server.py",
        b"/static/../../../../../../../../etc/passwd",
        b"/static/..%2f..%2fserver.py",
        b"/static/%2e%2e/server.py",
        b"/static//etc/passwd",
        b"/static/..\\server.py",
        b"//etc/passwd",
        b"/static/",
        b"http://evil.example/static/server.py",
    ],
)
def test_no_path_leads_out(server: Served, path: bytes) -> None:
    host = f"127.0.0.1:{server.port}".encode()
    answer = server.raw(b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in answer
    assert b"import" not in answer


HUGE_BODY = (
    b"POST /api/model HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nOrigin: http://127.0.0.1:PORT\r\n"
    b"Content-Type: application/json\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n{}"
)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", (b"421", b"400")),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", (b"400",)),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", (b"421",)),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.example\r\n\r\n", (b"421", b"400")),
        (b"nonsense\r\n\r\n", (b"400",)),
        (HUGE_BODY, (b"413",)),
        (b"GET /" + b"9" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", (b"400", b"closed")),
    ],
    ids=["no host, 1.0", "no host", "foreign host", "two hosts", "nonsense", "huge body", "huge query"],
)  # fmt: skip
def test_odd_bytes_are_refused(server: Served, request_: bytes, status: tuple[bytes, ...]) -> None:
    answer = server.raw(request_.replace(b"PORT", str(server.port).encode()))
    assert [*answer.split(b" "), b"closed"][1] in status, answer[:200]
    assert b"Traceback" not in answer
    assert httpx.get(server.address).status_code == 200


def test_it_answers_while_it_computes(server: Served) -> None:
    order: list[str] = []
    asked = threading.Event()

    def compute() -> None:
        with httpx.Client() as client:
            request = client.build_request("GET", f"{server.address}api/view/slow", params={"seconds": "2"})
            asked.set()
            assert client.send(request, stream=False).status_code == 200
        order.append("computed")

    worker = threading.Thread(target=compute)
    worker.start()
    asked.wait()
    for _ in range(3):
        assert httpx.get(f"{server.address}api/chapters").status_code == 200
    assert httpx.get(f"{server.address}api/view/powers").status_code == 200
    order.append("answered")
    worker.join()
    assert order == ["answered", "computed"]


def test_terminate_ends_it_without_a_traceback() -> None:
    with Served(*STAND_IN, "0") as served:
        code, said = served.stop(signal.SIGTERM)
        assert code == -signal.SIGTERM
        assert "Traceback" not in said


def test_ctrl_c_during_a_computation_ends_it() -> None:
    with Served(*STAND_IN, "0") as served:

        def ask() -> None:
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{served.address}api/view/slow", params={"seconds": "3"}, timeout=20).raise_for_status()

        worker = threading.Thread(target=ask)
        worker.start()
        # Sent after it, answered while it is computed: so the computation has begun.
        assert httpx.get(f"{served.address}api/chapters").status_code == 200
        assert served.stop() == (130, "interrupted\n")
        worker.join()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import rootdk.cli.explore as exploring

    monkeypatch.setattr(exploring, "find_spec", lambda name: None if name == "uvicorn" else object())
    result = CliRunner().invoke(main, ["explore"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: explore: needs uvicorn, which is not installed; get it with: pip install 'rootdk[lab]'\n"
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--port", "0"], "--port"),
        (["--port", "70000"], "--port"),
        (["--port", "x"], "--port"),
        (["--model", "nowhere"], "--model"),
        (["--export", "no/such/folder/page.html"], "--export"),
        (["--export", "."], "--export"),
        (["--at", "nowhere?d_k=4"], "--at"),
        (["--at", "growth?d_k=0"], "--at"),
        (["--at", "growth?colour=1"], "--at"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], word: str) -> None:
    result = CliRunner().invoke(main, ["explore", *options])
    assert result.exit_code == 2
    assert word in result.output
    assert "Traceback" not in result.output


def test_a_model_that_is_no_audit_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    for text in ("[", "[]", "{}"):
        path.write_text(text)
        result = CliRunner().invoke(main, ["explore", "--no-browser", "--model", str(path)])
        assert result.exit_code == 1
        assert result.output.startswith("Error: ")


def test_the_default_port_is_the_servers() -> None:
    from rootdk.cli.explore import PORT
    from rootdk.lab.explorer import server

    assert server.PORT == PORT

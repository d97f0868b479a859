"""The explorer's server: what it answers, what it refuses, and that a refusal names what is wrong."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import explorer_stand_in as stand_in
import pytest
from starlette.testclient import TestClient

from rootdk.lab.explorer.server import application, listening
from rootdk.lab.explorer.values import LARGEST_BODY

PORT = 8765
HERE = f"http://127.0.0.1:{PORT}"


def client(**options: Any) -> TestClient:
    app = application(PORT, (*stand_in.CHAPTERS, stand_in.BROKEN), **options)
    return TestClient(app, base_url=HERE, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def server() -> TestClient:
    return client()


def test_the_page_and_its_parts_are_there(server: TestClient) -> None:
    page = server.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in page.text
    assert "<style" not in page.text
    assert " style=" not in page.text
    assert "http" not in page.text.replace("http-equiv", "")
    for path, kind in (
        ("/static/main.js", "text/javascript"),
        ("/static/style.css", "text/css"),
        ("/static/palette.css", "text/css"),
        ("/plotly.js", "text/javascript"),
    ):
        answer = server.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].startswith(kind)
        assert server.get(path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    assert server.head("/").status_code == 200
    assert server.head("/").content == b""


def test_every_module_that_the_page_imports_is_served(server: TestClient) -> None:
    from rootdk.lab.explorer.export import imports_of

    seen, waiting = set(), ["main.js"]
    while waiting:
        name = waiting.pop()
        answer = server.get(f"/static/{name}")
        assert answer.status_code == 200, name
        seen.add(name)
        waiting += [module for module in imports_of(answer.text) if module not in seen]
    assert len(seen) > 5


@pytest.mark.parametrize("path", ["/", "/plotly.js", "/api/chapters", "/api/view/powers", "/api/view/none", "/nowhere"])
def test_headers_are_on_every_answer(server: TestClient, path: str) -> None:
    headers = server.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    # The one place for it: style attributes, which plotly.js sets on what it draws.
    assert policy.count("'unsafe-inline'") == 1
    assert "style-src-attr 'unsafe-inline'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (f"127.0.0.1:{PORT}", True),
        (f"localhost:{PORT}", True),
        (f"LOCALHOST:{PORT}", True),
        (f"[::1]:{PORT}", True),
        ("127.0.0.1:9999", False),
        ("127.0.0.1", False),
        ("localhost", False),
        (f"evil.example:{PORT}", False),
        (f"127.0.0.1.evil.example:{PORT}", False),
        (f"localhost:{PORT}.evil.example", False),
        (f"evil.example@127.0.0.1:{PORT}", False),
        (f"0.0.0.0:{PORT}", False),
        ("", False),
    ],
)
def test_host_must_be_this_machine(server: TestClient, host: str, allowed: bool) -> None:
    for path in ("/", "/api/chapters", "/plotly.js", "/nowhere"):
        answer = server.get(path, headers={"Host": host})
        assert (answer.status_code != 421) == allowed
        if not allowed:
            assert answer.json()["name"] == "Host"


@pytest.mark.parametrize(
    "path",
    [
        "/static/", "/static", "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/static/../../../../etc/passwd", "/static//etc/passwd", "/static/..\\server.py", "/static/server.py",
        "/../server.py", "/api", "/api/", "/api/view", "/api/view/", "/api/view/../chapters", "/docs", "/openapi.json",
        "/static/index.html", "/static/main.js/", "/static/%00main.js",
    ],
)  # fmt: skip
def test_nothing_else_is_served(server: TestClient, path: str) -> None:
    answer = server.get(path, follow_redirects=False)
    if answer.status_code == 200:  # the client resolved it before sending
        assert "chapters" in answer.json()
        return
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "name"}


def test_other_methods_are_refused(server: TestClient) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert server.request(method, "/api/chapters").status_code == 405
    assert server.post("/api/chapters", headers={"Origin": HERE}).status_code == 405
    assert server.post("/", headers={"Origin": HERE}).status_code == 405
    assert server.get("/api/model").status_code == 405


def test_chapters_are_described(server: TestClient) -> None:
    listing = server.get("/api/chapters").json()
    assert [chapter["id"] for chapter in listing["chapters"]] == ["powers", "matrix", "model", "broken"]
    assert listing["chapters"][0]["controls"][0]["name"] == "exponent"
    assert "compute" not in listing["chapters"][0]
    assert listing["model"] is False
    assert server.get("/api/chapters").headers["cache-control"] == "no-store"


def test_a_view_is_what_python_computes(server: TestClient) -> None:
    answer = server.get("/api/view/powers", params={"exponent": "0.5", "points": "100"})
    values = {"exponent": 0.5, "points": 100, "turned": False, "seed": 0}
    assert answer.json() == json.loads(json.dumps(stand_in.powers(values).to_dict()))
    assert server.get("/api/view/powers").json()["numbers"][0]["value"] == 2.0


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("exponent=3", "exponent"),
        ("exponent=nan", "exponent"),
        ("exponent=inf", "exponent"),
        ("exponent=1e999", "exponent"),
        ("exponent=", "exponent"),
        ("points=99999999999999999999999999", "points"),
        ("points=" + "9" * 7000, "points"),
        ("points=2.5", "points"),
        ("points=-1", "points"),
        ("turned=perhaps", "turned"),
        ("seed=x", "seed"),
        ("nothing=1", "nothing"),
        ("exponent=1&exponent=2", "exponent"),
        ("exponent=1.5&turned=true", "exponent"),
        ("points=" + "9" * 20_000, "query"),
    ],
)
def test_a_bad_value_is_named(server: TestClient, query: str, name: str) -> None:
    answer = server.get(f"/api/view/powers?{query}")
    assert answer.status_code == 422
    assert answer.json()["name"] == name
    assert answer.json()["error"].startswith(f"{name}: must ")
    assert len(answer.text) < 400


def test_a_matrix_is_bounded(server: TestClient) -> None:
    assert server.get("/api/view/matrix?entries=1 2 3; 4 5 6").status_code == 200
    for entries in ("1 2; 3", "1 2 3 4", "1;2;3;4", "1 x", "99", ";" * 100, ""):
        answer = server.get("/api/view/matrix", params={"entries": entries})
        assert (answer.status_code, answer.json()["name"]) == (422, "entries")


def test_an_unknown_chapter_is_a_404(server: TestClient) -> None:
    answer = server.get("/api/view/nothing")
    assert answer.status_code == 404
    assert answer.json() == {"error": "chapter: must be one of powers, matrix, model, broken", "name": "chapter"}


def test_a_fault_of_ours_shows_no_traceback(server: TestClient, capfd: pytest.CaptureFixture[str]) -> None:
    answer = server.get("/api/view/broken")
    assert answer.status_code == 500
    assert answer.json() == {"error": "chapter: broken could not be computed: ZeroDivisionError", "name": "chapter"}
    said = capfd.readouterr()
    assert "ZeroDivisionError" in said.err
    assert "Traceback" not in said.err + said.out


def test_a_fault_outside_the_chapters_shows_none_either(capfd: pytest.CaptureFixture[str]) -> None:
    from rootdk.lab.explorer.endpoints import Guard

    async def faulty(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("a secret place")

    answer = TestClient(Guard(faulty, PORT, "default-src 'none'"), base_url=HERE).get("/")
    assert answer.status_code == 500
    assert answer.json() == {"error": "server: a fault of its own, KeyError", "name": "server"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Traceback" not in capfd.readouterr().err


def test_other_sites_get_nothing(server: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        answer = server.get("/api/view/powers", headers={"Sec-Fetch-Site": site})
        assert (answer.status_code, answer.json()["name"]) == (403, "Sec-Fetch-Site")
    # A link from elsewhere to the page itself works.
    assert server.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
    assert server.get("/api/view/powers", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_small_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY on what a socket accepts if the socket says that it is TCP, and on no other."""
    with listening(0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


AUDIT = {"verdict": "healthy", "layers": [{"name": "a", "heads": []}], "findings": []}


def post(server: TestClient, content: Any, **headers: str) -> Any:
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    all_headers = {"Origin": HERE, "Content-Type": "application/json"} | headers
    return server.post("/api/model", content=content, headers=all_headers)


def test_an_audit_can_be_sent(server: TestClient) -> None:
    answer = post(server, AUDIT)
    assert answer.status_code == 200
    assert answer.json()["numbers"][0]["value"] == 1
    # Nothing of it stays.
    assert server.get("/api/view/model").json()["numbers"][0]["value"] == 0


def test_an_audit_is_checked(server: TestClient) -> None:
    assert post(server, AUDIT, Origin="http://evil.example").status_code == 403
    assert post(server, AUDIT, Origin="null").status_code == 403
    assert post(server, AUDIT, Origin=f"http://localhost:{PORT}").status_code == 403
    assert server.post("/api/model", content=b"{}").status_code == 403
    assert post(server, AUDIT, **{"Content-Type": "text/plain"}).status_code == 415
    for content in (
        b"", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"layers": NaN}', b"[" * 100_000, b'{"a":' * 100_000, {"verdict": "x"},
    ):  # fmt: skip
        answer = post(server, content)
        assert (answer.status_code, answer.json()["name"]) == (422, "audit"), content
    assert server.post("/api/model?layer=1000", json=AUDIT, headers={"Origin": HERE}).json()["name"] == "layer"


def test_a_huge_audit_is_not_read_to_its_end(server: TestClient) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4 * LARGEST_BODY:
            sent += 2**20
            yield b" " * 2**20

    answer = server.post("/api/model", content=parts(), headers={"Origin": HERE, "Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["name"]) == (413, "audit")
    lied = post(server, AUDIT, **{"Content-Length": str(LARGEST_BODY + 1)})
    assert lied.status_code == 413


def test_an_audit_of_the_command_line_is_shown() -> None:
    visitor = client(audit=AUDIT)
    assert visitor.get("/api/chapters").json()["model"] is True
    assert visitor.get("/api/view/model").json()["numbers"][0]["value"] == 1

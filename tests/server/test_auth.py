"""Who may ask."""

from __future__ import annotations

from tests.server.conftest import TOKEN


def test_without_the_token_the_api_is_closed(stranger):
    assert stranger.get("/api/v1/status").status_code == 401
    assert stranger.get("/api/v1/status", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert stranger.get("/api/v1/openapi.json").status_code == 401
    assert stranger.get("/").status_code == 200


def test_the_link_sets_a_cookie_and_removes_the_token_from_the_address(stranger):
    answer = stranger.get("/", params={"token": TOKEN})
    assert answer.status_code == 303 and answer.headers["location"] == "./"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and cookie.startswith("unembed_7333=")
    assert stranger.get("/api/v1/status").status_code == 200
    assert stranger.get("/", params={"token": "wrong"}).status_code == 200


def test_other_hosts_and_other_sites_are_refused(client):
    assert client.get("/api/v1/status", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"host": "127.0.0.1.evil.example"}).status_code == 421
    assert client.get("/api/v1/status", headers={"origin": "http://evil.example"}).status_code == 403
    assert client.get("/api/v1/status", headers={"origin": "http://127.0.0.1:8888"}).status_code == 403
    assert client.get("/api/v1/status", headers={"origin": "http://127.0.0.1:7333"}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/api/v1/status").headers


def test_every_answer_carries_the_policy(client, stranger):
    for answer in (client.get("/"), client.get("/api/v1/status"), stranger.get("/api/v1/status")):
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_large_requests_are_refused(client):
    assert client.post("/api/v1/traces", content=b"x" * 300_000).status_code == 413

    def pieces():
        for _ in range(40):
            yield b"x" * 10_000

    assert client.post("/api/v1/traces", content=pieces()).status_code == 413


def test_no_path_leaves_the_folder_of_the_page(client):
    from unembed import __version__

    for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "js/../../app.py", "/etc/passwd"):
        assert client.get(f"/static/{__version__}/{path}").status_code == 404

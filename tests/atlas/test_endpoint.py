"""The client of an endpoint, against a small server on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.atlas.fake_endpoint import FakeEndpoint
from unembed.atlas import Endpoint
from unembed.atlas.endpoint import KEY
from unembed.errors import InvalidInput, UnembedError

SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)


def test_answers_come_in_the_order_of_the_prompts_and_are_not_bought_twice(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    prompts = [f"prompt {i % 5}" for i in range(9)]
    with FakeEndpoint(str.upper) as server:
        assert Endpoint(server.url, "one", path).ask(prompts) == [prompt.upper() for prompt in prompts]
        assert len(server.requests) == 5
        assert Endpoint(server.url, "one", path).ask(prompts) == [prompt.upper() for prompt in prompts]
        assert len(server.requests) == 5
        Endpoint(server.url, "another", path).ask(prompts[:1])  # another model answers for itself
        assert len(server.requests) == 6
        assert server.requests[0]["authorization"] == f"Bearer {SECRET}"
        assert server.requests[0]["temperature"] == 0


def test_the_key_is_in_no_file_and_a_redirect_does_not_get_it(tmp_path: Path) -> None:
    with FakeEndpoint(str.upper) as elsewhere, FakeEndpoint(str.upper) as server:
        Endpoint(server.url, "one", tmp_path / "answers.jsonl").ask(["a"])
        server.fail = [(302, {"Location": f"{elsewhere.url}/chat/completions"})] * 9
        with pytest.raises(InvalidInput, match="refuses the request") as raised:
            Endpoint(server.url, "one", tmp_path / "answers.jsonl").ask(["b"])
        assert not elsewhere.requests
    assert SECRET not in str(raised.value)
    assert all(SECRET not in file.read_text() for file in tmp_path.iterdir())


def test_a_busy_endpoint_is_given_the_time_that_it_needs(tmp_path: Path) -> None:
    waited: list[float] = []
    with FakeEndpoint(str.upper) as server:
        server.fail = [(429, {"Retry-After": "7"}), (503, {})]
        ask = Endpoint(server.url, "one", tmp_path / "a.jsonl", wait=waited.append).ask
        assert ask(["a"]) == ["A"]
        assert waited == [7, 2]
        server.fail = [(429, {})] * 20
        with pytest.raises(UnembedError, match="stays busy"):
            ask(["b"])


def test_what_was_answered_before_an_interruption_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with FakeEndpoint(str.upper) as server:
        Endpoint(server.url, "one", path).ask(["a", "b"])
        whole = path.read_text()
        path.write_text(whole[:-20])  # the last line was cut off
        assert Endpoint(server.url, "one", path).ask(["a", "b", "c"]) == ["A", "B", "C"]
        assert len(server.requests) == 4
        assert Endpoint(server.url, "one", path).ask(["a", "b", "c"]) == ["A", "B", "C"]
        assert len(server.requests) == 4
    path.write_text("no json\n" + whole)
    with pytest.raises(InvalidInput, match="line 1 is damaged"):
        Endpoint("http://localhost:1/v1", "one", path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_an_interruption_does_not_wait_for_the_endpoint(tmp_path: Path) -> None:
    path, end = tmp_path / "a.jsonl", threading.Event()

    def answer(prompt: str) -> str:
        if prompt != "quick":
            end.wait()
        return prompt

    code = (
        "import signal, sys; from pathlib import Path; from unembed.atlas import Endpoint\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it\n"
        "Endpoint(sys.argv[1], 'one', Path(sys.argv[2])).ask(['quick', *'abcdefgh'])"
    )
    with FakeEndpoint(answer) as server:
        running = subprocess.Popen(
            [sys.executable, "-c", code, server.url, str(path)], stderr=subprocess.PIPE, text=True
        )
        while not (path.exists() and path.read_text()):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        try:
            errors = running.communicate(timeout=60)[1]  # the endpoint would be given 300 s
        finally:
            running.kill()
            end.set()
    assert "KeyboardInterrupt" in errors
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize(("code", "why"), [(401, "refuses the key"), (404, "refuses the request")])
def test_a_refusal_is_one_line_without_the_key(tmp_path: Path, code: int, why: str) -> None:
    with FakeEndpoint(str.upper) as server:
        server.fail = [(code, {})]
        with pytest.raises(InvalidInput, match=why) as raised:
            Endpoint(server.url, "one", tmp_path / "a.jsonl").ask(["a"])
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_another_kind_of_server_is_refused(tmp_path: Path) -> None:
    with FakeEndpoint(str.upper) as server:
        server.raw = b"<html>hello</html>"
        with pytest.raises(UnembedError, match=r"choices\[0\]"):
            Endpoint(server.url, "one", tmp_path / "a.jsonl").ask(["a"])
        url = server.url
    with pytest.raises(UnembedError, match="cannot be reached"):
        Endpoint(url, "one", tmp_path / "a.jsonl", wait=lambda _seconds: None).ask(["a"])


@pytest.mark.parametrize("url", ["localhost:8080/v1", "file:///etc/passwd", "http://me:secret@localhost/v1"])
def test_a_malformed_address_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="http or https") as raised:
        Endpoint(url, "one", tmp_path / "a.jsonl")
    assert "secret" not in str(raised.value)

"""Send prompts to a language model behind an OpenAI-compatible endpoint, and store each answer in a file.

The endpoint is `POST URL/chat/completions`, which hosted services and local servers (llama.cpp, vLLM, Ollama) offer.
Every answer is appended to a file of JSON lines at once. A prompt whose answer is in the file is not sent again, so
that an interrupted run continues where it ended. The key comes from the environment variable `KEY`. It is sent to the
endpoint only: redirects are refused, and neither files nor error messages contain the key.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from io import IOBase
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from unembed.errors import InvalidInput, UnembedError
from unembed.results import make_folder, write_whole

KEY = "UNEMBED_JUDGE_KEY"
"""The environment variable with the endpoint's key; not needed by a server that asks for none."""
AT_ONCE = 4
"""Number of prompts that are sent at the same time."""
_TRIES, _LONGEST_WAIT, _SECONDS = 6, 60.0, 300.0
_BUSY = (408, 429, 500, 502, 503, 504)

Progress = Callable[[int, int], None]


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IOBase, code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Refuse every redirect: it would send the key to another address."""


class Endpoint:
    """A language model behind an OpenAI-compatible endpoint."""

    def __init__(self, url: str, model: str, answers: Path, *, wait: Callable[[float], None] = time.sleep) -> None:
        """Read the answers of an earlier run.

        Args:
            url: the address without `/chat/completions`, such as `http://localhost:8080/v1`.
            model: the name of the model, as the endpoint calls it.
            answers: the file of JSON lines to which answers are appended.
            wait: a function that waits for a number of seconds; tests replace it.

        Raises:
            InvalidInput: the URL is malformed, or the file cannot be read.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidInput(
                f"the endpoint {parts.scheme}://{parts.hostname or ''}",
                why="it is not an http or https address, or it contains a password",
                instead=f"Give an address such as http://localhost:8080/v1, and a key in the variable {KEY}",
            )
        self._url, self.model, self._answers, self._wait = url.rstrip("/"), model, answers, wait
        self._opener = build_opener(_NoRedirects)
        self._known = _stored(answers)

    def ask(self, prompts: Sequence[str], progress: Progress = lambda _done, _total: None) -> list[str]:
        """Return the answer to every prompt.

        Raises:
            InvalidInput: the endpoint refuses the key or the request.
            UnembedError: the endpoint cannot be reached, stays busy, or sends a reply without an answer.
        """
        new = [one for one in dict.fromkeys(prompts) if self._name(one) not in self._known]
        make_folder(self._answers.parent)
        waiting: SimpleQueue[str] = SimpleQueue()
        answered: SimpleQueue[tuple[str, str | Exception]] = SimpleQueue()
        for prompt in new:
            waiting.put(prompt)
        # A thread pool is not used, because Python waits for its threads before it exits: Ctrl-C would have no effect
        # until the endpoint has answered. Python does not wait for daemon threads.
        for _ in range(min(AT_ONCE, len(new))):
            Thread(target=self._send_all, args=(waiting, answered), daemon=True).start()
        try:
            with self._answers.open("a", encoding="utf-8") as file:
                for done in range(1, len(new) + 1):
                    prompt, answer = _next(answered)
                    if isinstance(answer, Exception):
                        raise answer
                    name = self._name(prompt)
                    self._known[name] = answer
                    file.write(json.dumps({"prompt": name, "model": self.model, "answer": answer}) + "\n")
                    file.flush()
                    progress(done, len(new))
        finally:
            with suppress(Empty):
                while True:
                    waiting.get_nowait()
        return [self._known[self._name(prompt)] for prompt in prompts]

    def _send_all(self, waiting: SimpleQueue[str], answered: SimpleQueue[tuple[str, str | Exception]]) -> None:
        """Send one prompt after another until none is waiting."""
        with suppress(Empty):
            while True:
                prompt = waiting.get_nowait()
                try:
                    answered.put((prompt, self._send(prompt)))
                except Exception as error:
                    answered.put((prompt, error))

    def _name(self, prompt: str) -> str:
        return hashlib.sha256(f"{self.model}\n{prompt}".encode()).hexdigest()

    def _send(self, prompt: str) -> str:
        for attempt in range(_TRIES):
            try:
                return self._once(prompt)
            except HTTPError as error:
                error.close()
                if error.code not in _BUSY or attempt == _TRIES - 1:
                    raise self._refused(error) from None
                self._wait(_seconds(error.headers.get("Retry-After"), attempt))
            except (URLError, HTTPException, OSError) as error:
                if attempt == 1:  # a server that is starting needs a moment
                    raise UnembedError(
                        f"the endpoint {self._url}",
                        why=f"it cannot be reached: {getattr(error, 'reason', error)}",
                        instead="Start the server or correct the address, then continue with the same command",
                    ) from None
                self._wait(_seconds(None, attempt))
        raise AssertionError("unreachable: the last attempt either returned an answer or raised an error")

    def _once(self, prompt: str) -> str:
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0}
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = Request(f"{self._url}/chat/completions", json.dumps(body).encode(), headers)
        with self._opener.open(request, timeout=_SECONDS) as reply:
            text = reply.read()
        try:
            answer = json.loads(text)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError):
            answer = None
        if not isinstance(answer, str):
            raise UnembedError(
                f"the endpoint {self._url}",
                why="its reply has no choices[0].message.content",
                instead="Give the address of an OpenAI-compatible endpoint, which often ends in /v1",
            )
        return answer

    def _refused(self, error: HTTPError) -> UnembedError:
        what = f"the endpoint {self._url}"
        if error.code in (401, 403):
            return InvalidInput(
                what, why=f"it refuses the key (HTTP {error.code})", instead=f"Set {KEY} to a valid key"
            )
        if error.code in _BUSY:
            return UnembedError(
                what, why=f"it stays busy (HTTP {error.code})", instead="Run the same command later; it continues"
            )
        return InvalidInput(
            what, why=f"it refuses the request (HTTP {error.code})", instead="Check the address and the model's name"
        )


def _next(answered: SimpleQueue[tuple[str, str | Exception]]) -> tuple[str, str | Exception]:
    """Wait for an answer, in steps of one second, because on Windows a wait without a timeout ignores Ctrl-C."""
    while True:
        with suppress(Empty):
            return answered.get(timeout=1.0)


def _seconds(named: str | None, attempt: int) -> float:
    """Return how many seconds to wait: what the `Retry-After` header says or, without it, 1, 2, 4 ... (by attempt)."""
    try:
        return min(_LONGEST_WAIT, max(0.0, float(named or "")))
    except ValueError:
        return min(_LONGEST_WAIT, float(2**attempt))


def _stored(path: Path) -> dict[str, str]:
    """Read stored answers. A last line that an interruption cut off is removed from the file."""
    if not path.exists():
        return {}
    found = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        try:
            if line:
                row = json.loads(line)
                found[row["prompt"]] = str(row["answer"])
        except (ValueError, KeyError, TypeError) as fault:
            if number != len(lines) - 1:
                raise InvalidInput(
                    f"the answers in {path}",
                    why=f"line {number + 1} is damaged",
                    instead="Remove that line or the file",
                ) from fault
            write_whole(path, "".join(f"{one}\n" for one in lines[:-1]))
    return found

"""The served explorer in a real browser: Chromium, headless, through Playwright. Skipped where either is missing."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Page, expect, sync_playwright
from transformers import LlamaConfig, LlamaForCausalLM

import unembed
from tests.sweeps.recorder import lettered
from unembed.server.app import create
from unembed.server.serve import listening_socket
from unembed.server.state import ServerState

expect.set_options(timeout=30_000)  # the machine that runs the tests may be busy
TOKEN = "a-token-for-tests"
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}|{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LINES = [
    "The first month of the year is January .",
    "She put the book on the table and left the house .",
    "The capital of France is Paris , and the capital of Italy is Rome .",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A server that is stopped at once leaves connections open, and Python warns of them during any later test."""
    left = pytest.mark.filterwarnings("ignore:.*unclosed (transport|<socket)", "ignore:.*_SelectorTransport.__del__")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(left)


class Served:
    """An explorer that runs in a thread of this process."""

    def __init__(self, lm, index=None, name: str = "of-tests") -> None:
        import uvicorn

        self.session = ServerState(lm, index, index_name=None if index is None else name)
        self.socket = listening_socket("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        app = create(self.session, token=TOKEN, port=self.port)
        settings = {"log_level": "error", "ws": "none", "lifespan": "off", "timeout_graceful_shutdown": 1}
        self.server = uvicorn.Server(uvicorn.Config(app, **settings))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.02)

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/"

    def stop(self) -> None:
        """End it, connections and all."""
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(timeout=10)
        self.session.close()


@pytest.fixture(scope="session")
def lm():
    """The embedded model."""
    return unembed.load()


@pytest.fixture(scope="session")
def index(lm, tmp_path_factory):
    """An index of a few sentences."""
    return unembed.Index.build(lm, LINES, tmp_path_factory.mktemp("index") / "of-tests", top=25)


@pytest.fixture(scope="session")
def firing(lm, index) -> tuple[int, int]:
    """A memory that fires on many tokens of the index's corpus, and most at one that others precede."""
    rows = index.sql('SELECT layer, "index" FROM statistics ORDER BY active DESC, layer, "index" LIMIT 200').rows()
    places = ((row["layer"], row["index"]) for row in rows)
    return next(place for place in places if index.triggers(*place, 1)[0]["prefix"])


@pytest.fixture(scope="session")
def served(lm, index) -> Iterator[Served]:
    """An explorer with an index."""
    found = Served(lm, index)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def deep() -> Iterator[Served]:
    """An explorer of a Llama of 30 layers with random weights, which knows letters and conversations."""
    tokenizer: Any = lettered("llama", bos=True).tokenizer
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=30,
        num_attention_heads=3,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    served = Served(unembed.load(model, tokenizer=tokenizer))
    yield served
    served.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, served) -> Iterator[Callable[..., Page]]:
    """Open the explorer at a screen; every page must end without an error and without asking elsewhere.

    A test that provokes errors puts a part of their text into `opened.allowed`.
    """
    contexts, complaints, allowed = [], [], []

    def open_page(
        where: str = "",
        *,
        theme: str = "light",
        width: int = 1280,
        at: str | None = None,
        token: str = TOKEN,
        **more,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, accept_downloads=True, **more
        )
        contexts.append(context)
        address = at or served.address
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", lambda r: complaints.append(f"asked {r.url}") if not _own(r.url, address) else None)
        page.on("console", lambda m: complaints.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda e: complaints.append(f"page: {e}"))
        page.goto(f"{address}?token={token}{where}")  # the fragment outlives the redirect
        return page

    open_page.complaints, open_page.allowed = complaints, allowed
    yield open_page
    for context in contexts:
        context.close()
    strange = [complaint for complaint in complaints if not any(text in complaint for text in allowed)]
    assert not strange, strange


def address(page: Page) -> str:
    """The page's address, once it follows what the page shows: the page has it follow before it is left."""
    page.evaluate("dispatchEvent(new Event('pagehide'))")
    return page.url


def _own(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))

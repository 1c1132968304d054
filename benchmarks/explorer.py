"""The explorer on wren: latency of interactions in Chromium and in the server, size of the page, memory.

    python benchmarks/explorer.py [--samples 50] [--dry]

About six minutes on two cores. `--dry` prints and records nothing. Needs playwright and chromium.

Wall times run from the input event to the next painted frame, so other work on the machine lengthens them; the load
average is recorded with them. The CPU time of the server for each request is less sensitive to it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
from measure import Claim, record
from playwright.sync_api import Browser, Page, sync_playwright  # pyright: ignore[reportMissingImports]

_AVERAGED = 48
"""Traces over which the server's memory is averaged: three of its releases of freed memory."""
_FILLING = 300
"""Traces of 32 tokens (66 kB of JSON each) after which the server's 16 MiB of answers are full."""
TEXT = "the first month of the year is a book on the table and she said that it was not there"
WORDS = TEXT.split()


def p95(values: list[float]) -> float:
    """The 95th percentile, in milliseconds."""
    return 1000 * sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def prompt(n: int, k: int) -> str:
    """A text of about n tokens, different for each k."""
    return " ".join(WORDS[(i * (k + 1) + k // 7) % len(WORDS)] for i in range(n - 1)) + f" {k}"


def cpu(pid: int) -> float:
    """CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


class Server:
    """`unembed serve` in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "unembed", "serve", "--no-browser", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        link = re.search(r"(http://\S+/)\?token=(\S+)", self.process.stdout.readline())
        assert link is not None
        self.address, self.token, self.pid = link[1], link[2], self.process.pid
        with self.client() as client:
            self.n_layers: int = client.get("/models").raise_for_status().json()["models"][0]["n_layers"]

    def client(self, name: str = "bench") -> httpx.Client:
        """An HTTP client with the token."""
        headers = {"authorization": f"Bearer {self.token}", "x-client": name}
        return httpx.Client(base_url=f"{self.address}api/v1", headers=headers, timeout=120)

    def timed(self, samples: int, send: Callable[[int], object]) -> tuple[list[float], float]:
        """Wall seconds of each request, and the mean CPU time of the server for one, in milliseconds."""
        send(-1)
        cpu_before, walls = cpu(self.pid), []
        for k in range(samples):
            start = time.perf_counter()
            send(k)
            walls.append(time.perf_counter() - start)
        return walls, 1000 * (cpu(self.pid) - cpu_before) / samples


def requests(server: Server, samples: int) -> list[Claim]:
    """Latency of requests, without a browser."""
    claims = []
    with server.client() as client:

        def trace(k: int) -> str:
            return client.post("/traces", json={"prompt": prompt(32, k)}).raise_for_status().json()["id"]

        key, layers = trace(-2), server.n_layers
        cases: dict[str, tuple[Callable[[int], object], int]] = {
            "trace of 32 tokens": (trace, 150),
            "a position, all layers": (lambda k: client.get(f"/traces/{key}?position={k % 30}&memories=5&top=10"), 100),
            "a layer": (lambda k: client.get(f"/traces/{key}/layers/{k % layers}?position={k % 30}&memories=20"), 100),
            "a memory card": (lambda k: client.get(f"/memories/{k % layers}/{k + 50}?top=24"), 100),
            "the next token under an edit": (lambda k: client.post("/next", json=edited(k)), 100),
            "search by a word": (
                lambda k: client.get("/memories/search", params={"q": f"-{WORDS[k % 18]} layer:{k % layers}"}),
                100,
            ),
        }
        for name, (send, target) in cases.items():
            walls, own = server.timed(samples, send)
            claims.append(Claim(f"server, {name}, wall p95 (ms)", p95(walls), target, f"{own:.0f} ms of CPU"))
        firsts = []
        for k in range(min(samples, 20)):
            start = time.perf_counter()
            with client.stream("POST", "/compare", json={**edited(k), "max_new_tokens": 4}) as lines:
                next(lines.iter_lines())
                firsts.append(time.perf_counter() - start)
        claims.append(Claim("first streamed token, wall p95 (ms)", p95(firsts), 150))
        with client.stream("POST", "/traces", json={"prompt": prompt(32, 3)}) as answer:
            raw = b"".join(answer.iter_raw())
        claims.append(Claim("response of a trace of 32 tokens, gzip (kB)", len(raw) / 1000, 60))
    return claims


def edited(k: int) -> dict:
    """A prompt with an edit, different for each k."""
    return {
        "prompt": "The first month of the year is",
        "edits": [{"action": "set", "layer": 3, "index": k % 1000, "value": 3.0 + k}],
    }


def growth(server: Server, n: int = 200) -> list[Claim]:
    """Growth of the server's memory over many traces, after its caches are full."""
    with server.client() as client:

        def traced(first: int, many: int) -> float:
            """Mean memory over the last traces of so many: it rises and falls with what is freed between two traces."""
            seen = []
            for k in range(many):
                client.post("/traces", json={"prompt": prompt(32, first + k)}).raise_for_status()
                seen.append(resident(server.pid))
            return statistics.mean(seen[-_AVERAGED:])

        before = traced(1000, _FILLING)
        once, twice = traced(2000, n) - before, traced(2000 + n, n) - before
    name = "growth of the server's memory over {} traces (MiB)"
    return [
        Claim(name.format(n), once, 24, f"from {before:.0f} MiB; means of {_AVERAGED} traces"),
        Claim(name.format(2 * n), twice, 24),
    ]


def concurrent(server: Server, clients: int = 8, each: int = 12) -> list[Claim]:
    """Concurrent clients with different prompts: every response must be that of its request."""

    def one(number: int) -> int:
        wrong = 0
        with server.client(f"client{number}") as client:
            for k in range(each):
                text = prompt(12 + number, 5000 + 100 * number + k)
                answer = client.post("/traces", json={"prompt": text})
                wrong += answer.status_code != 200 or answer.json()["prompt"] != text
                wrong += "".join(t["token"] for t in answer.json().get("tokens", [])) != text
        return wrong

    with ThreadPoolExecutor(clients) as pool:
        wrong = sum(pool.map(one, range(clients)))
    return [Claim(f"wrong responses to {clients} concurrent clients, {clients * each} traces", wrong, 0)]


SCREENS = [
    "trace",
    "layer",
    "memory?memory=L3M5",
    "intervene",
    "compare",
    "heads",
    "atlas",
    "search",
    "label",
    "labs/steer",
    "labs/toxicity",
    "labs/early-exit",
]


def sizes(browser: Browser, server: Server) -> list[Claim]:
    """Compressed bytes of the modules and style sheets that a visitor of one screen loads, with an empty cache."""
    compressed = (
        "() => performance.getEntriesByType('resource').filter((one) => /[.](js|css)$/.test(one.name))"
        ".map((one) => [one.name, one.encodedBodySize])"
    )
    by_screen, every = {}, {}
    for screen in SCREENS:
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{server.address}?token={server.token}#/{screen}")
        page.wait_for_load_state("networkidle")
        found = dict(page.evaluate(compressed))
        by_screen[screen.split("?")[0]] = sum(found.values()) / 1000
        every |= found
        page.close()
    heaviest = max(by_screen, key=lambda name: by_screen[name])
    whole = sum(every.values()) / 1000
    note = f"{heaviest}; who opens all {len(SCREENS)} screens has loaded {whole:.0f} kB in {len(every)} files"
    what = "modules and style sheets that a visitor of {}, with an empty cache, gzip (kB)"
    return [
        Claim(what.format("the first screen loads"), by_screen["trace"], 120),
        Claim(what.format("one screen loads at most"), by_screen[heaviest], 120, note),
    ]


def in_browser(server: Server, samples: int, traces: int = 200) -> list[Claim]:
    """Latency from the input event to the next painted frame, and the size of the page, in Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return []
    framed = (
        "async (act) => { const from = performance.now(); act(); "
        "await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); return performance.now() - from; }"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        claims = sizes(browser, server)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(f"{server.address}?token={server.token}")
        ready = "() => document.querySelectorAll('.cell').length && document.querySelector('.bars')"
        page.wait_for_function(ready)
        paints = []
        for _ in range(min(samples, 12)):
            page.reload()
            page.wait_for_function("() => document.querySelectorAll('.cell').length")
            # The grid is in the document at the mark, and painted one frame later.
            drawn = page.evaluate("performance.getEntriesByName('unembed-grid')[0].startTime")
            paints.append((drawn + 17) / 1000)
            page.wait_for_function(ready)
        claims.append(Claim("first paint of the grid of the bundled example, p95 (ms)", p95(paints), 500))
        page.goto(f"{server.address}#/trace?prompt={quote(prompt(32, 1))}")
        page.reload()
        page.wait_for_function(
            "() => document.querySelectorAll('.grid-token').length > 8 && document.querySelector('.bars')"
        )
        press = "(key) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
        page.evaluate("document.querySelector('.grid').focus()")

        def frames(name: str, act: str, values: Sequence[str | int]) -> Claim:
            times = [
                page.evaluate(f"(x) => ({framed})(() => ({act})(x))", values[k % len(values)]) / 1000
                for k in range(samples)
            ]
            return Claim(f"{name}, p95 (ms)", p95(times), 50, f"median {1000 * statistics.median(times):.0f}")

        claims.append(frames("selection of another cell", press, ["ArrowUp", "ArrowDown"]))
        claims.append(frames("another metric", press, ["m"]))
        page.goto(f"{server.address}#/layer?layer=3&prompt={quote(prompt(32, 1))}")
        page.reload()
        page.wait_for_selector(".sub-update")
        choose = (
            "(i) => { const box = document.querySelector('select[aria-label=\"Rank by\"]'); box.selectedIndex = i; "
            "box.dispatchEvent(new Event('change')); }"
        )
        claims.append(frames("sorting sub-updates", choose, [0, 1, 2]))
        claims += typed(page, samples, _PAUSE) + typed(page, samples, None)
        claims += [claim for one in _INTERACTIONS for claim in interaction(page, server, samples, *one)]
        page.goto(f"{server.address}#/trace")
        page.wait_for_selector(".grid")
        heap = context.new_cdp_session(page)
        used = []
        drawn = "() => performance.getEntriesByName('unembed-grid').length"
        for k in range(traces):
            before = page.evaluate(drawn)
            page.evaluate(_GO, f"#/trace?prompt={quote(prompt(16, 9000 + k))}")
            page.wait_for_function(f"(before) => ({drawn})() > before", arg=before)
            if k in (traces // 2 - 1, traces - 1):
                page.wait_for_timeout(1500)
                heap.send("HeapProfiler.collectGarbage")
                used.append(heap.send("Runtime.getHeapUsage")["usedSize"] / 2**20)
        note = f"after {traces // 2}: {used[0]:.0f}"
        claims.append(Claim(f"browser heap after {traces} traces (MiB)", used[1], 150, note))
        browser.close()
    return claims


# Typing an address makes the browser look it up as well, which links of the page do not.
_GO = "(to) => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }"
_PAUSE = 200
"""Milliseconds between the last typed letter and the Enter key."""
_SAME = prompt(32, 1)
_INTERACTIONS: tuple[tuple[str, str, str, Callable[[int, int], tuple[str, ...]]], ...] = (
    (
        "another position",
        "position",
        "#/trace?prompt={}&position={}",
        lambda k, _: (_SAME, str(k % 30)),
    ),
    ("another layer", "select", "#/layer?prompt={}&layer={}", lambda k, layers: (_SAME, str(k % layers))),
    ("a memory card", "memory", "#/memory?prompt={}&memory={}", lambda k, layers: (_SAME, f"L{k % layers}M{k + 50}")),
)
"""Interactions with a request: name, the page's name of the span, the address, and its parameters from k and the layers."""


def interaction(
    page: Page,
    server: Server,
    samples: int,
    name: str,
    span: str,
    where: str,
    fill: Callable[[int, int], tuple[str, ...]],
) -> list[Claim]:
    """The spans of one interaction, from its event to the frame after it, as the page itself measures them."""

    def go(k: int) -> None:
        page.evaluate(_GO, where.format(*map(quote, fill(k, server.n_layers))))

    rows: list[tuple[str, str, float | None]] = [(span, name, 100)]
    if span == "position":  # these panes are drawn a frame or two later
        rows.append(("whole position", f"{name}, with the panes below the grid", None))
    return spans(page, samples, go, span, rows)


def typed(page: Page, samples: int, pause: int | None) -> list[Claim]:
    """A prompt in the box, traced by the Enter key.

    The end of the prompt is typed, and Enter follows after so many milliseconds; with None, the whole prompt is set at
    once and the server receives nothing before Enter.
    """
    box = page.get_by_role("textbox", name="Prompt")

    def go(k: int) -> None:
        text = prompt(32, (7000 if pause is None else 6000) + k)
        if pause is None:
            box.evaluate("(box, text) => { box.value = text; box.focus(); }", text)
        else:
            box.fill(text[:-3])
            page.wait_for_timeout(300)
            page.keyboard.type(text[-3:], delay=60)
            page.wait_for_timeout(pause)
        page.keyboard.press("Enter")

    when = "Enter at once" if pause is None else f"Enter {pause} ms after the last letter"
    name = f"grid of a 32-token trace, {when}"
    page.evaluate(_GO, "#/trace")
    box.wait_for()
    return spans(page, samples, go, "trace", [("trace", name, 150), ("whole trace", f"{name}, with its events", None)])


def spans(
    page: Page, samples: int, go: Callable[[int], None], last: str, rows: list[tuple[str, str, float | None]]
) -> list[Claim]:
    """The durations that the page measures over many calls of `go(k)`, by name of the span; `last` ends each call."""
    times = "(name) => performance.getEntriesByName(name, 'measure').map((one) => one.duration)"
    go(-1)
    page.wait_for_timeout(6000)  # what is read once, WordNet among it, takes seconds
    page.evaluate("performance.clearMeasures()")
    for k in range(samples):
        go(k)
        # Polled rarely: polling in every frame would itself make frames.
        page.wait_for_function(f"([name, n]) => ({times})(name).length > n", arg=[last, k], polling=100)
        page.wait_for_timeout(500)  # for what is drawn after the first frame (entropies, a sample)
    claims = []
    for span, name, limit in rows:
        found = [t / 1000 for t in page.evaluate(times, span)]
        claims.append(Claim(f"{name}, p95 (ms)", p95(found), limit, f"median {1000 * statistics.median(found):.0f}"))
    return claims


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=50, help="of each interaction")
    parser.add_argument("--traces", type=int, default=200, help="for the growth of memory")
    parser.add_argument("--dry", action="store_true", help="print, and do not write RESULTS.md")
    given = parser.parse_args()
    claims = []
    server = Server()
    try:
        for part in (
            lambda: requests(server, given.samples),
            lambda: growth(server, given.traces),
            lambda: concurrent(server),
            lambda: in_browser(server, given.samples, given.traces),
        ):
            for claim in part():
                claims.append(claim)
                print(f"{claim.what}: {claim.ratio:.1f} ({claim.verdict}) {claim.note}", flush=True)
    finally:
        server.process.terminate()
        server.process.wait(timeout=20)
    if not given.dry:
        load = ", ".join(f"{x:.0f}" for x in os.getloadavg())
        how = f"{given.samples} samples each. Load average during the run: {load} on {os.cpu_count()} cores."
        if nice := os.getpriority(os.PRIO_PROCESS, 0):
            how += f" Other jobs ran on them; this one had nice value {nice}."
        record("The explorer on wren", claims, how=how)


if __name__ == "__main__":
    main()

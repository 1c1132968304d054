"""The explorer on wren: how long an interaction takes, in Chromium and in the server; what it weighs; what it holds.

    python benchmarks/explorer.py [--samples 50] [--dry]

About five minutes on two cores. `--dry` prints and records nothing.

Wall times run from the input event to the next painted frame and feel everything else that the machine does; the load
average stands beside them. The server's own CPU time for each request does not. Needs playwright and chromium.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gzip
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import httpx
from measure import Claim, record

_FILLING = 300
"""Traces of 32 tokens (66 kB of JSON each) after which the server's 16 MiB of answers are full."""
WORDS = [
    "the",
    "first",
    "month",
    "of",
    "the",
    "year",
    "is",
    "a",
    "book",
    "on",
    "the",
    "table",
    "and",
    "she",
    "said",
    "that",
    "it",
    "was",
    "not",
    "there",
]


def p95(values: list[float]) -> float:
    """The 95th percentile, in milliseconds."""
    return 1000 * sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def prompt(n: int, k: int) -> str:
    """About n tokens, another text for each k."""
    return " ".join(WORDS[(i * (k + 1) + k // 7) % len(WORDS)] for i in range(n - 1)) + f" {k}"


def cpu(pid: int) -> float:
    """Seconds of CPU a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """MiB of memory a process holds."""
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

    def client(self, name: str = "bench") -> httpx.Client:
        """One that knows the token."""
        headers = {"authorization": f"Bearer {self.token}", "x-client": name}
        return httpx.Client(base_url=f"{self.address}api/v1", headers=headers, timeout=120)

    def timed(self, samples: int, ask) -> tuple[list[float], float]:
        """Wall seconds of each request, and milliseconds of the server's CPU for one."""
        ask(-1)
        start, walls = cpu(self.pid), []
        for k in range(samples):
            begun = time.perf_counter()
            ask(k)
            walls.append(time.perf_counter() - begun)
        return walls, 1000 * (cpu(self.pid) - start) / samples


def weight() -> tuple[int, int]:
    """Bytes of the page's modules and style sheets, each compressed on its own as it is served, and plain."""
    from unembed.server.assets import STATIC

    files = [f for kind in ("js", "css") for f in STATIC.rglob(f"*.{kind}") if f.name != "notebook.js"]
    texts = [file.read_bytes() for file in files]
    return sum(len(gzip.compress(text, 1)) for text in texts), sum(map(len, texts))


def requests(server: Server, samples: int) -> list[Claim]:
    """The server alone."""
    claims = []
    with server.client() as client:

        def trace(k: int) -> str:
            return client.post("/traces", json={"prompt": prompt(32, k)}).raise_for_status().json()["id"]

        key = trace(-2)
        cases = {
            "trace of 32 tokens": (trace, 100),
            "a position, all layers": (lambda k: client.get(f"/traces/{key}?position={k % 30}&memories=5&top=10"), 100),
            "a layer": (lambda k: client.get(f"/traces/{key}/layers/{k % 6}?position={k % 30}&memories=20"), 100),
            "a memory card": (lambda k: client.get(f"/memories/{k % 6}/{k + 50}?top=24"), 100),
            "the next token under an edit": (lambda k: client.post("/next", json=edited(k)), 100),
            "search by a word": (
                lambda k: client.get("/memories/search", params={"q": f"-{WORDS[k % 18]} layer:{k}"}),
                100,
            ),
        }
        for what, (ask, target) in cases.items():
            walls, own = server.timed(samples, ask)
            claims.append(Claim(f"server, {what}, wall p95 (ms)", p95(walls), target, f"{own:.0f} ms of CPU"))
        firsts = []
        for k in range(min(samples, 20)):
            begun = time.perf_counter()
            with client.stream("POST", "/compare", json={**edited(k), "max_new_tokens": 4}) as lines:
                next(lines.iter_lines())
                firsts.append(time.perf_counter() - begun)
        claims.append(Claim("first streamed token, wall p95 (ms)", p95(firsts), 150))
        with client.stream("POST", "/traces", json={"prompt": prompt(32, 3)}) as answer:
            raw = b"".join(answer.iter_raw())
        claims.append(Claim("a trace of 32 tokens over the wire (kB)", len(raw) / 1000, 60))
    return claims


def edited(k: int) -> dict:
    """A prompt with an edit that no other k has."""
    return {
        "prompt": "The first month of the year is",
        "edits": [{"action": "set", "layer": 3, "index": k % 1000, "value": 3.0 + k}],
    }


def growth(server: Server, n: int = 200) -> list[Claim]:
    """The server's memory over many traces, after as many as its caches hold."""
    with server.client() as client:
        for k in range(_FILLING):
            client.post("/traces", json={"prompt": prompt(32, 1000 + k)}).raise_for_status()
        before = resident(server.pid)
        for k in range(n):
            client.post("/traces", json={"prompt": prompt(32, 2000 + k)}).raise_for_status()
        after = resident(server.pid)
    return [Claim(f"server memory grown over {n} traces (MiB)", after - before, 24, f"from {before:.0f} MiB")]


def crowd(server: Server, clients: int = 8, each: int = 12) -> list[Claim]:
    """Clients at once, each with its own prompts; every answer must be that of its question."""

    def one(number: int) -> int:
        wrong = 0
        with server.client(f"crowd{number}") as client:
            for k in range(each):
                text = prompt(12 + number, 5000 + 100 * number + k)
                answer = client.post("/traces", json={"prompt": text})
                wrong += answer.status_code != 200 or answer.json()["prompt"] != text
                wrong += "".join(t["token"] for t in answer.json().get("tokens", [])) != text
        return wrong

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        wrong = sum(pool.map(one, range(clients)))
    return [Claim(f"errors and mixed-up answers, {clients} clients at once, {clients * each} traces", wrong, 0)]


def in_browser(server: Server, samples: int, traces: int = 200) -> list[Claim]:
    """From the input event to the next painted frame, in Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return []
    framed = (
        "async (act) => { const from = performance.now(); act(); "
        "await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); return performance.now() - from; }"
    )
    claims = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
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
            paints.append(drawn + 17)
            page.wait_for_function(ready)
        claims.append(Claim("the bundled example drawn, p95 (ms)", p95([p / 1000 for p in paints]), 500))
        page.goto(f"{server.address}#/trace?prompt={prompt(32, 1).replace(' ', '%20')}")
        page.reload()
        page.wait_for_function(
            "() => document.querySelectorAll('.grid-token').length > 8 && document.querySelector('.bars')"
        )
        press = "(key) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
        page.evaluate("document.querySelector('.grid').focus()")
        acts = {
            "moving the selection": ("ArrowUp", "ArrowDown"),
            "changing the metric": ("m", "m"),
        }
        for what, keys in acts.items():
            times = [
                page.evaluate(f"(key) => ({framed})(() => ({press})(key))", keys[k % 2]) / 1000 for k in range(samples)
            ]
            claims.append(Claim(f"{what}, p95 (ms)", p95(times), 50, f"median {1000 * statistics.median(times):.0f}"))
        page.goto(f"{server.address}#/layer?layer=3&prompt={prompt(32, 1).replace(' ', '%20')}")
        page.reload()
        page.wait_for_selector(".sub-update")
        click = (
            "(i) => { const box = document.querySelector('select[aria-label=\"Rank by\"]'); box.selectedIndex = i; "
            "box.dispatchEvent(new Event('change')); }"
        )
        times = [page.evaluate(f"(i) => ({framed})(() => ({click})(i))", k % 3) / 1000 for k in range(samples)]
        claims.append(
            Claim("sorting sub-updates, p95 (ms)", p95(times), 50, f"median {1000 * statistics.median(times):.0f}")
        )
        claims += typed(page, samples, _REST) + typed(page, samples, None)
        claims += [claim for one in _SEARCHES for claim in search_claims(page, server, samples, *one)]
        page.goto(f"{server.address}#/trace")
        page.wait_for_selector(".grid")
        heap = context.new_cdp_session(page)
        sizes = []
        drawn = "() => performance.getEntriesByName('unembed-grid').length"
        for k in range(traces):
            before = page.evaluate(drawn)
            page.evaluate(_GO, f"#/trace?prompt={quote(prompt(16, 9000 + k))}")
            page.wait_for_function(f"(before) => ({drawn})() > before", arg=before)
            if k in (traces // 2 - 1, traces - 1):
                page.wait_for_timeout(1500)
                heap.send("HeapProfiler.collectGarbage")
                sizes.append(heap.send("Runtime.getHeapUsage")["usedSize"] / 2**20)
        note = f"after {traces // 2}: {sizes[0]:.0f}"
        claims.append(Claim(f"browser heap after {traces} traces (MiB)", sizes[1], 150, note))
        browser.close()
    return claims


# An address that is typed makes the browser look for a place of that name as well. The page's own links do less: they
# ask first, and change the address when the answer is drawn.
_GO = "(to) => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }"
_REST = 200
"""Milliseconds between the last letter that is typed and the key that asks for the trace."""
_SEARCHES = (
    (
        "the popover of a cell, another position",
        "position",
        "#/trace?prompt={}&position={}",
        lambda k: (_SAME, k % 30),
        100,
    ),
    ("another layer", "select", "#/layer?prompt={}&layer={}", lambda k: (_SAME, k % 6), 100),
    ("a memory card", "memory", "#/memory?prompt={}&memory={}", lambda k: (_SAME, f"L{k % 6}M{k + 50}"), 100),
)
"""Interactions that ask the server: what, the page's own name for the span, the address, what fills it, milliseconds."""
_SAME = prompt(32, 1)


def search_claims(
    page, server: Server, samples: int, what: str, name: str, where: str, fill, limit: float
) -> list[Claim]:
    """The spans of one interaction, from its event to the frame after it, as the page itself measures them."""

    def go(k: int) -> None:
        found = fill(k)
        filled = where.format(*(quote(str(x)) for x in (found if isinstance(found, tuple) else (found,))))
        page.evaluate(_GO, filled)

    rows: list[tuple[str, str, float | None]] = [(name, what, limit)]
    if name == "position":  # what comes a frame or two later, under a span of its own
        rows.append(("whole position", f"{what}, with the panes below the grid", None))
    return spans(page, samples, go, name, rows)


def typed(page, samples: int, rest: int | None) -> list[Claim]:
    """A prompt in the box, asked for by the Enter key.

    Its end is typed, and then the typing rests for so many milliseconds; with None, nothing but the key tells the server.
    """
    box = page.get_by_role("textbox", name="Prompt")

    def go(k: int) -> None:
        text = prompt(32, (7000 if rest is None else 6000) + k)
        if rest is None:
            box.evaluate("(box, text) => { box.value = text; box.focus(); }", text)
        else:
            box.fill(text[:-3])
            page.wait_for_timeout(300)
            page.keyboard.type(text[-3:], delay=60)
            page.wait_for_timeout(rest)
        page.keyboard.press("Enter")

    when = "asked for at once" if rest is None else f"asked for {rest} ms after it was typed"
    what = f"a trace of 32 tokens, {when}"
    page.evaluate(_GO, "#/trace")
    box.wait_for()
    return spans(page, samples, go, "trace", [("trace", what, 100), ("whole trace", f"{what}, with its events", None)])


def spans(page, samples: int, go, name: str, rows: list[tuple[str, str, float | None]]) -> list[Claim]:
    """What the page itself measures under some names, over many times of what `go(k)` does; `name` ends each."""
    times = "(name) => performance.getEntriesByName(name, 'measure').map((one) => one.duration)"
    go(-1)
    page.wait_for_timeout(6000)  # what is read once, WordNet among it, takes seconds
    page.evaluate("performance.clearMeasures()")
    for k in range(samples):
        go(k)
        # Looked for seldom: a look every frame makes frames, which nobody's browser does.
        page.wait_for_function(f"([name, n]) => ({times})(name).length > n", arg=[name, k], polling=100)
        page.wait_for_timeout(500)  # a person looks; what comes after the first frame (entropies, a sample) comes
    claims = []
    for span, text, most in rows:
        found = [t / 1000 for t in page.evaluate(times, span)]
        claims.append(Claim(f"{text}, p95 (ms)", p95(found), most, f"median {1000 * statistics.median(found):.0f}"))
    return claims


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=50, help="of each interaction")
    parser.add_argument("--traces", type=int, default=200, help="over which memory may not grow")
    parser.add_argument("--dry", action="store_true", help="print, but leave RESULTS.md as it is")
    given = parser.parse_args()
    small, plain = weight()
    claims = [Claim("modules and style sheets as served, gzip (kB)", small / 1000, 120, f"{plain / 1000:.0f} kB plain")]
    server = Server()
    try:
        for part in (
            lambda: requests(server, given.samples),
            lambda: growth(server, given.traces),
            lambda: crowd(server),
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
        record("The explorer on wren", claims, how=how)


if __name__ == "__main__":
    main()

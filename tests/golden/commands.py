"""The cases of the command line: options that are representative, wrong inputs, and the help of every command."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from typer.testing import CliRunner, Result

from tests.golden.case import OTHER_PROMPT, PROMPT, SENTENCES, Case, Place
from tests.golden.comparison import indented

FORMS = {"json": ["--json"], "text": [], "csv": ["--csv"], "html": ["--html", "page.html"]}
TABLE = ("json", "text", "csv", "html")
TEXT = ("json", "text")

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "trace": (TABLE, f"trace '{PROMPT}' --memories 12"),
    "trace/layer": (TEXT, f"trace '{PROMPT}' --layer 1 --position 3 --top 4 --token ' the' --against none"),
    "trace/edits": (TEXT, f"trace '{PROMPT}' --set L1M7=4 --scale L0H1=0 --scale ffn1=0.5 --add L0M3=1.5 --top 3"),
    "trace/vector": (TEXT, f"trace '{PROMPT}' --add-vector '1=2*I love this|I hate this' --basis raw --top 3"),
    "trace/index": (TABLE, f"trace '{PROMPT}' --index INDEX --memories 5 --next"),
    "trace/several": (TABLE, f"trace '{PROMPT}' '{OTHER_PROMPT}' --top 3"),
    "trace/file": (("json", "text"), "trace --prompts prompts.txt --top 3"),
    "trace/windows": (("json", "text"), f"trace '{PROMPT}' --basis frozen --show-unlearned --point resid_mid --last 3"),
    "lens": (TABLE, f"lens '{PROMPT}' '{OTHER_PROMPT}' --top 3"),
    "lens/all-positions": (TEXT, f"lens '{PROMPT}' --all-positions --top 2 --point resid_mid --basis raw"),
    "explain": (TABLE, f"explain '{PROMPT}' --token ' the' --against ' a'"),
    "explain/head": (TABLE, f"explain '{PROMPT}' --token ' the' --by head --position 2"),
    "explain/source": (TEXT, f"explain '{PROMPT}' --token ' the' --against none --by source --top 6"),
    "explain/memory": (TABLE, f"explain '{PROMPT}' --token ' the' --by memory --top 6 --index INDEX"),
    "explain/effects": (TABLE, f"explain '{PROMPT}' --token ' the' --effects --top 5 --scale L1H0=0"),
    "patch": (TABLE, f"patch '{PROMPT}' '{OTHER_PROMPT}' --answer ' January' --against ' December'"),
    "patch/heads": (TABLE, f"patch '{PROMPT}' '{OTHER_PROMPT}' --points heads --noising"),
    "patch/memories": (TEXT, f"patch '{PROMPT}' '{OTHER_PROMPT}' --points memories --top 3"),
    "patch/align": (TEXT, f"patch '{PROMPT}' 'The very last month of the year is' --points mlp_out --align"),
    "patch/edits": (TEXT, f"patch '{PROMPT}' '{OTHER_PROMPT}' --points attn_out --scale L0H0=0"),
    "paths": (TABLE, f"paths '{PROMPT}' '{OTHER_PROMPT}' --from L0H1 --from 'mlp_out 1' --to L1H2.q --to logits"),
    "paths/heads": (TEXT, f"paths '{PROMPT}' '{OTHER_PROMPT}' --from L0H0 --answer ' the' --top 5"),
    "ablate": (TABLE, f"ablate '{PROMPT}' --answer ' the' --against ' a' --top 6"),
    "ablate/components": (TABLE, f"ablate '{PROMPT}' --what components"),
    "ablate/layers": (TEXT, f"ablate '{PROMPT}' --what layers --to mean --tokens 400 --corpus text.txt"),
    "ablate/screen": (TABLE, f"ablate '{PROMPT}' --what screen --top 6"),
    "ablate/memory": (TEXT, f"ablate '{PROMPT}' --memory L1M5 --memory L0M3 --answer ' the'"),
    "ablate/position-mean": (TEXT, f"ablate '{PROMPT}' --to position-mean --tokens 400 --corpus text.txt --top 4"),
    "ablate/resample": (TEXT, "ablate --to resample --tokens 400 --corpus lines.txt --seed 1 --what layers"),
    "ablate/resample/refused": (TEXT, f"ablate '{PROMPT}' --to resample"),
    "ablate/cluster": (TEXT, f"ablate '{PROMPT}' --cluster L1M5"),
    "ablate/concept": (TEXT, f"ablate '{PROMPT}' --concept months --index INDEX"),
    "ablate/corpus": (TABLE, "ablate --corpus text.txt --tokens 300 --what layers"),
    "ablate/by-token": (TEXT, "ablate --corpus text.txt --tokens 300 --memory L1M5 --by-token --top 5"),
    "circuit": (
        TABLE,
        f"circuit '{PROMPT}' --token ' the' --against ' a' --against-prompt '{OTHER_PROMPT}' --max-nodes 8",
    ),
    "circuit/alone": (TEXT, f"circuit '{PROMPT}' --alone --set-to zero --sizes 3 --max-nodes 8"),
    "circuit/rankings": (TEXT, f"circuit '{PROMPT}' --token ' the' --alone --kinds memories --rankings --max-nodes 8"),
    "circuit/groups": (
        TEXT,
        f"circuit '{PROMPT}' --token ' the' --alone --group-by role --change scale --times 0.5 --max-nodes 8",
    ),
    "circuit/nothing": (TEXT, "circuit"),
    "value": (TABLE, "value L1M5"),
    "value/index": (TABLE, "value 1 5 --index INDEX"),
    "value/final": (TEXT, "value L1M7 --basis final --show-unlearned --top 5"),
    "memories": (TEXT, "memories --index GALLERY --top 5"),
    "memories/layer": (TEXT, "memories --index GALLERY --layer 1 --top 4 --by-score"),
    "memories/shipped": (TEXT, "memories --top 5"),
    "clusters": (TABLE, "clusters --clusters 40 --layer 1 --top 4"),
    "clusters/memory": (TEXT, "clusters --clusters 40 --layer 1 --layer 2 --memory L1M5 --linkage complete --tokens 5"),
    "concepts": (TABLE, "concepts --per-layer 2 --seed 1"),
    "concepts/list": (TABLE, "concepts L1M5 L2M3 --list --top 20 --no-embedding"),
    "steer": (TEXT, f"steer '{PROMPT}' --set L1M5=6 --cost-tokens 300 --new-tokens 6"),
    "steer/promote": (TEXT, f"steer '{PROMPT}' --promote 'king, war' --suppress peace --cost-tokens 0 -n 6 --triggers"),
    "steer/sampled": (TEXT, f"steer '{PROMPT}' --scale ffn1=0 --samples 2 --seed 3 -n 5 --cost-tokens 0 --save e.json"),
    "annotate/agreement": (TABLE, "annotate agreement a.json b.json"),
    "annotate/agreement/automatic": (TEXT, "annotate agreement a.json b.json --automatic"),
    "annotate/import": (TABLE, "annotate import a.json b.json"),
    "index/build/dry-run": (TEXT, "index build --corpus text.txt --dry-run"),
    "index/build": (("json", "text"), "index build --corpus text.txt --out FORM-built --top 5 --layer 1"),
    "index/status": (TEXT, "index status INDEX"),
    "index/triggers": (TABLE, "index triggers INDEX L1M5 --top 4"),
    "index/triggers/negative": (TEXT, "index triggers INDEX 1 9 --pole negative --context 4"),
    "index/search": (TABLE, "index search INDEX 'spring' --top 5"),
    "index/promoting": (TABLE, "index promoting INDEX ' war' --top 5"),
    "index/promoting/rank": (TEXT, "index promoting INDEX ' the' --top 5 --by rank"),
    "index/firing": (TABLE, f"index firing INDEX '{PROMPT}' --top 5 --model MODEL"),
    "index/firing/coefficient": (TEXT, f"index firing INDEX '{PROMPT}' --top 5 --by coefficient --model MODEL"),
    "index/similar": (TABLE, "index similar INDEX L1M5 --top 5 --model MODEL"),
    "index/similar/keys": (TEXT, "index similar INDEX L1M5 --top 5 --among keys --model MODEL"),
    "index/sql": (TABLE, "index sql INDEX 'select layer, count(*) as n from triggers group by layer order by layer'"),
    "index/verify": (TEXT, "index verify INDEX"),
    "index/export": (TEXT, "index export INDEX triggers.csv --layer 1 --context 5"),
    "circuits/heads": (TABLE, "circuits heads --sequences 4 --length 12"),
    "circuits/head": (TABLE, "circuits head L1H2 --top 6"),
    "circuits/relations": (TABLE, "circuits relations verb_past_tense adj_comparative --top 6"),
    "circuits/head/offset": (TEXT, "circuits head 0 1 --top 4 --offset 2 --basis raw"),
    "circuits/composition": (TABLE, "circuits composition --top 6"),
    "circuits/composition/q": (TEXT, "circuits composition --top 6 --kind q --basis raw --seed 2"),
    "circuits/skip-trigrams": (TABLE, "circuits skip-trigrams L1H2 --top 6"),
    "circuits/skip-trigrams/source": (
        TEXT,
        "circuits skip-trigrams 0 1 --top 5 --source ' the' --min-count 2 --corpus text.txt --check",
    ),
    "circuits/induction": (TABLE, "circuits induction --sequences 4 --length 12 --top 5"),
    "circuits/stream": (TABLE, "circuits stream --top 5"),
    "circuits/offsets": (TABLE, "circuits offsets L1H2 --to 6"),
    "circuits/virtual-weights": (TABLE, "circuits virtual-weights L1H2 --top 5"),
    "circuits/virtual-weights/memory": (TEXT, "circuits virtual-weights L1M5 --top 5"),
    "circuits/look": (TABLE, f"circuits look L1H2 '{PROMPT}'"),
    "circuits/look/against": (TEXT, f"circuits look L1H2 '{PROMPT}' --token ' the' --against ' a'"),
    "circuits/look/token": (TEXT, f"circuits look 1 2 '{PROMPT}' --token ' the' --position 4"),
    "circuits/scores": (TABLE, f"circuits scores L1H2 '{PROMPT}'"),
    "circuits/virtual-head": (TABLE, "circuits virtual-head L0H1 L1H2 --top 5"),
    "circuits/virtual-head/prompt": (TEXT, f"circuits virtual-head L0H1 L1H2 --top 5 --prompt '{PROMPT}'"),
    "circuits/expand": (TABLE, f"circuits expand '{PROMPT}' --top 6"),
    "circuits/expand/token": (TEXT, f"circuits expand '{PROMPT}' --top 6 --token ' the' --order 1 --position 3"),
    "circuits/direct-path": (TABLE, "circuits direct-path --corpus lines.txt --tokens 20"),
    "circuits/term-importance": (TABLE, "circuits term-importance --corpus text.txt --max-tokens 300"),
    "circuits/in-context": (TABLE, "circuits in-context --corpus long.txt --window 64 --windows 3"),
    "circuits/in-context/without": (TEXT, "circuits in-context --corpus long.txt --window 64 --without 1.0"),
    "confidence": (TABLE, "confidence --top 3 --text-windows 2 --corpus text.txt"),
    "toxicity/select": (TABLE, "toxicity select --values 4"),
    "toxicity/select/lowest": (TEXT, "toxicity select --values 4 --lowest --coefficient 2"),
    "toxicity/evaluate": (
        TABLE,
        "toxicity evaluate --prompts prompts.txt --set L1M5=3 --words words.txt --self-debiasing --new-tokens 5 "
        "--clean-tokens 300",
    ),
    "early-exit/fit/margin": (TEXT, "early-exit fit --out margin.npz --method margin --corpus lines.txt --examples 60"),
    "early-exit/fit": (TEXT, "early-exit fit --out rule.npz --corpus lines.txt --examples 60 --clusters 20"),
    "early-exit/fit/both": (TEXT, "early-exit fit --out b.npz --method both --corpus lines.txt -n 60 --threshold f1"),
    "early-exit/evaluate": (TABLE, "early-exit evaluate RULE --corpus lines.txt --examples 40"),
    "early-exit/evaluate/tradeoff": (TEXT, "early-exit evaluate RULE --corpus lines.txt --examples 40 --tradeoff"),
    "early-exit/generate": (TEXT, f"early-exit generate RULE '{PROMPT}' --new-tokens 6"),
}  # fmt: skip
ATTENTION_ONLY = {
    "attn-0l": ("circuits/direct-path", "explain"),
    "attn-1l": ("circuits/skip-trigrams/source", "trace"),
    "attn-2l": (
        "circuits/heads", "circuits/head", "circuits/composition", "circuits/induction", "circuits/expand",
        "circuits/expand/token", "circuits/virtual-head/prompt", "circuits/term-importance",
        "circuits/in-context/without", "circuits/look", "circuits/look/against", "circuits/scores", "circuits/stream",
        "explain/source", "ablate", "patch/heads",
    ),
}  # fmt: skip
"""Models without feed-forward layers, and the commands that are run on them."""
COLOURED = ("trace", "lens", "explain", "patch", "value", "circuits/heads", "index/triggers")
LEFT_OUT = {
    "wren": (
        "memories", "memories/layer", "paths/heads", "toxicity/select/lowest", "circuits/expand",
        "circuits/expand/token",
    ),
    "gated": (
        "memories/shipped", "memories/layer", "circuits/skip-trigrams", "circuits/expand", "circuits/expand/token",
        "circuits/term-importance",
    ),
}  # fmt: skip
"""Commands that are slow on a model, or refuse it."""
SLOW_ON_WREN = ("csv", "html")
WITHOUT_MODEL = ("index", "annotate/import")
"""Commands that take no `--model`, besides those that name it."""

WRONG = [
    "",
    "nothing",
    "trace",
    "trace ''",
    f"trace '{PROMPT}' --layer 99",
    f"trace '{PROMPT}' --position 70",
    f"trace '{PROMPT}' --token 'January'",
    f"trace '{PROMPT}' --set 99.1=1",
    f"trace '{PROMPT}' --set rubbish",
    f"trace '{PROMPT}' --scale ffn1",
    f"trace '{PROMPT}' --add-vector '3=missing.npy'",
    f"trace '{PROMPT}' --json --csv",
    f"trace '{PROMPT}' --model missing",
    f"trace '{PROMPT}' --dtype int3",
    f"trace '{PROMPT}' --index missing",
    f"trace '{PROMPT}' --html missing/page.html",
    f"trace '{PROMPT}' --basis other",
    f"explain '{PROMPT}'  --token ' first month'",
    f"explain '{PROMPT}' --by other",
    f"patch '{PROMPT}' 'Short'",
    f"patch '{PROMPT}' '{OTHER_PROMPT}' --against ' a'",
    f"paths '{PROMPT}' '{OTHER_PROMPT}' --from L9H99",
    f"paths '{PROMPT}' '{OTHER_PROMPT}' --from L1H0 --to L0H0.q",
    "ablate",
    f"ablate '{PROMPT}' --memory other",
    f"ablate '{PROMPT}' --concept missing",
    "ablate --corpus missing.txt",
    "value L99M0",
    "value other",
    "memories --layer 99",
    "clusters --clusters 99999999",
    "concepts rubbish",
    "models --csv",
    "train nothing",
    "serve --port rubbish",
    f"steer '{PROMPT}'",
    f"steer '{PROMPT}' --set L1M1=1 --samples 2",
    f"steer '{PROMPT}' --edits prompts.txt",
    "report nothing",
    "report geva2021 --option rubbish",
    "report geva2021 --option colour=3",
    "annotate import missing.json",
    "annotate import prompts.txt",
    "index status missing",
    "index triggers index-wren L99M0",
    "index promoting index-wren Quetzal",
    "index sql index-wren 'drop table triggers'",
    "index sql index-wren 'select x from nowhere'",
    "index export index-wren out.xlsx",
    "index build --corpus missing.txt --out x",
    "index build --corpus empty.txt --out x",
    "index build --corpus text.txt --out index-wren --top 3",
    "circuits heads --model wren --basis other",
    "circuits head 99 0",
    "circuits head other 0",
    "circuits skip-trigrams L0H1 --source 'two words'",
    "circuits expand 'The' --order 7",
    "circuits virtual-head L1H2 L0H1",
    "circuits virtual-weights other",
    "circuits in-context --corpus text.txt --without rubbish",
    "circuits direct-path --model wren --corpus missing.txt",
    "toxicity select --method greedy",
    "toxicity select --scorer missing",
    "toxicity evaluate --prompts missing.txt",
    "early-exit fit --out rule.npz --method other",
    "early-exit fit --out rule.npz --threshold rubbish",
    "early-exit evaluate prompts.txt",
    "early-exit evaluate missing.npz",
]


def cases() -> Iterator[Case]:
    """The cases of the command line."""
    for path in _commands():
        yield Case(
            f"cli/help/{' '.join(path) or 'unembed'}", lambda place, path=path: {"text": _run([*path, "--help"])[1]}
        )
    for model in ("wren", "gated"):
        for name in COMMANDS:
            if name not in LEFT_OUT[model]:
                yield Case(f"cli/{model}/{name}", lambda place, model=model, name=name: _outputs(place, model, name))
    for model, names in ATTENTION_ONLY.items():
        for name in names:
            yield Case(f"cli/{model}/{name}", lambda place, model=model, name=name: _outputs(place, model, name))
    yield Case("cli/models", lambda place: {"json": _run(["models", "--json"])[1], "text": _run(["models"])[1]})
    yield Case("cli/doctor", lambda place: {"json": _parts_of_doctor()})
    for line in WRONG:
        yield Case(f"cli/wrong/{line}", lambda place, line=line: _wrong(place, line))


def _commands() -> Iterator[list[str]]:
    """The words of every command and group."""
    from typer.main import get_command

    from unembed.cli.commands import app

    waiting: list[tuple[list[str], Any]] = [([], get_command(app))]
    while waiting:
        path, command = waiting.pop()
        yield path
        waiting += [([*path, name], one) for name, one in getattr(command, "commands", {}).items()]


def _outputs(place: Place, model: str, name: str) -> dict[str, str]:
    """A command in each of its forms."""
    _write_files(place, model)
    forms, line = COMMANDS[name]
    if model != "gated":
        forms = [form for form in forms if form not in SLOW_ON_WREN]
    words = line.split(" ", 2)
    named = [] if words[0] in WITHOUT_MODEL or name in WITHOUT_MODEL else ["--model", place.name(model)]
    if name.startswith("index/build"):
        named = ["--model", place.name(model)]
    made: dict[str, str] = {}
    for form in [*forms, *(["coloured"] if name in COLOURED and model == "gated" else [])]:
        arguments = shlex.split(line.replace("FORM", f"{form}-{model}")) + named + FORMS.get(form, [])
        arguments = [_argument(place, model, word) for word in arguments]
        result, text = _run(arguments, coloured=form == "coloured")
        if form == "html" and result.exit_code == 0:
            text += Path("page.html").read_text(encoding="utf-8").replace("><", ">\n<")
        made[form] = text
    return made


def _argument(place: Place, model: str, word: str) -> str:
    if word == "INDEX":
        return str(place.index(model))
    if word == "GALLERY":  # a copy, because the command writes into it
        copy = Path(f"gallery-{model}")
        return str(copy if copy.exists() else shutil.copytree(place.index(model), copy))
    if word == "MODEL":
        return place.name(model)
    return str(_rule(place, model)) if word == "RULE" else word


def _rule(place: Place, model: str) -> Path:
    """A rule for early exit."""
    path = Path(f"fitted-{model}.npz")
    if not path.exists():
        command = "early-exit fit --method margin --corpus lines.txt --examples 60 --threshold 0.2"
        _run([*command.split(), "--out", str(path), "--model", place.name(model)])
    return path


def _write_files(place: Place, model: str) -> None:
    """The texts that commands read, and two annotators' files."""
    if not Path("text.txt").exists():
        Path("text.txt").write_text("\n".join(SENTENCES * 3))
        Path("lines.txt").write_text("\n".join(f"{line} It was page {i} ." for i in range(20) for line in SENTENCES))
        Path("long.txt").write_text(" ".join(SENTENCES * 12))
        Path("prompts.txt").write_text(f"{PROMPT}\n{OTHER_PROMPT}\n")
        Path("words.txt").write_text("war\nold\n")
        Path("empty.txt").write_text(" \n")
        place.load("wren")
    if not Path("a.json").exists():
        for name, tokens in (("a", [0, 1, 2, 3]), ("b", [0, 1, 2, 4])):
            _run(["annotate", "export", f"{name}.json", "--memory", "1.5", "--top", "10"])
            sheet = json.loads(Path(f"{name}.json").read_text())
            sheet["vectors"][0]["patterns"] = [{"description": "d", "kind": "names", "tokens": tokens}]
            Path(f"{name}.json").write_text(json.dumps(sheet))


def _wrong(place: Place, line: str) -> dict[str, str]:
    _write_files(place, "wren")
    place.index("wren")
    return {"text": _run(shlex.split(line))[1]}


def _parts_of_doctor() -> str:
    findings = json.loads(_run(["doctor", "--json"])[0].stdout)["findings"]
    return indented([{name: one[name] for name in ("what", "used_for")} for one in findings])


def _run(arguments: list[str], *, coloured: bool = False) -> tuple[Result, str]:
    """The result of a command, and what it printed as one text."""
    from unembed.cli.commands import app

    torch.manual_seed(0)
    with patch("sys.argv", ["unembed"]):
        result = _on_a_terminal(app, arguments) if coloured else CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    text = f"exit status {result.exit_code}\n--- stderr\n{result.stderr}--- stdout\n"
    if "--json" in arguments and result.exit_code == 0:
        return result, text + "\n".join(indented(json.loads(line)) for line in _documents(result.stdout))
    return result, text + result.stdout


def _documents(text: str) -> list[str]:
    """One JSON document, or one a line."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return text.splitlines()
    return [text]


def _on_a_terminal(app: Any, arguments: list[str]) -> Result:
    """A command whose standard output and error are a terminal with 256 colours."""
    import typer.testing as testing

    runner = CliRunner(env={"TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": None})
    wrapper = next(cls for cls in (getattr(m, "_NamedTextIOWrapper", None) for m in _modules(testing)) if cls)
    with patch.object(wrapper, "isatty", lambda self: True, create=True):
        return runner.invoke(app, arguments)


def _modules(testing: Any) -> list[Any]:
    """Where the class of the runner's output may be defined: typer's own copy of click, or click."""
    import sys

    return [sys.modules[cls.__module__] for cls in testing.CliRunner.__mro__ if cls.__module__ in sys.modules]

"""`unembed early-exit`: fit, evaluate and use rules by which tokens exit early."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unembed.cli import options

app = typer.Typer(no_args_is_help=True, help="Early exit: fit a rule, evaluate it, generate with it.")

_Corpus = Annotated[
    str | None,
    typer.Option("--corpus", help="File, folder or pattern; default: the shipped WikiText.", show_default=False),
]
_Examples = Annotated[int, typer.Option("--examples", "-n", min=20, help="Examples to draw, one from each sentence.")]
_Rule = Annotated[Path, typer.Argument(help="A rule that `fit` saved.", show_default=False)]


@app.command("fit")
def fit(
    out: Annotated[Path, typer.Option("--out", help="Where to save the rule.")],
    method: Annotated[
        Literal["sub_updates", "representation", "update", "both", "margin", "entropy", "agreement"],
        typer.Option(help="What decides: dominant sub-updates; a classifier on the stream; the model's confidence."),
    ] = "sub_updates",
    corpus: _Corpus = None,
    examples: _Examples = 5000,
    disagreement: Annotated[
        float | None,
        typer.Option(
            help="Largest expected share of changed tokens, by risk control, such as 0.05.", show_default=False
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(help="A number, or by layer: precision, f1. Default: that of the method.", show_default=False),
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(
            help="Cost of a decision in blocks (0.1), or: measured. Decide only at layers that save more.",
            show_default=False,
        ),
    ] = None,
    clusters: Annotated[int, typer.Option(min=2, help="For sub_updates: clusters of all values.")] = 200,
    similarity: Annotated[
        Literal["ordered", "set"], typer.Option(help="For sub_updates: as released, or as the paper says.")
    ] = "ordered",
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    plain: options.Plain = False,
) -> None:
    """Fit a rule on random prefixes of sentences, choose its thresholds on others, and save it."""
    options.check_output(None, json=as_json, plain=plain)
    level = _number_or_word(threshold, "--threshold", "precision", "f1")
    cost = _number_or_word(decision, "--decision", "measured")
    from unembed.cli.model_loading import opened
    from unembed.cli.output import deliver_table
    from unembed.results import check_writable

    check_writable(out)
    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    from unembed import early_exit

    own: dict[str, Any] = {"clusters": clusters, "similarity": similarity} if method == "sub_updates" else {}
    found = early_exit.examples(lm, corpus, examples, seed=38 if seed is None else seed, progress=_progress)
    rule = early_exit.fit(
        lm,
        found,
        method,
        seed=38 if seed is None else seed,
        threshold=level,
        disagreement=disagreement,
        decision=cost,  # pyright: ignore[reportArgumentType]
        **own,
    )
    rule.save(out)
    if sys.stderr.isatty():
        print(f"saved {out}: {rule.method}, {rule.calibration}", file=sys.stderr)
    deliver_table(early_exit.saturation_table(lm, found), as_json=as_json, csv=False, plain=plain, html=None)


def _number_or_word(text: str | None, option: str, *words: str) -> str | float | None:
    if text is None or text in words:
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor {' or '.join(words)}", param_hint=option) from None


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rexample {done} of {total}", end="\n" if done >= total else "", file=sys.stderr)


@app.command("evaluate")
def evaluate(
    rule: _Rule,
    corpus: _Corpus = None,
    examples: _Examples = 1000,
    tradeoff: Annotated[
        bool, typer.Option("--tradeoff", help="Disagreement against layers saved, for all thresholds.")
    ] = False,
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """Evaluate a rule's accuracy and saved layers on other examples."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    from unembed.cli.model_loading import opened
    from unembed.cli.output import deliver_table

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    from unembed import early_exit

    found = early_exit.examples(lm, corpus, examples, seed=1 if seed is None else seed, progress=_progress)
    fitted = early_exit.load(rule, lm)
    table = fitted.tradeoff(found) if tradeoff else fitted.evaluate(found)
    deliver_table(table, as_json=as_json, csv=csv, plain=plain, html=html)


@app.command("generate")
def generate(
    rule: _Rule,
    prompt: options.Prompt,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=1, help="Tokens to add.")] = 20,
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    plain: options.Plain = False,
) -> None:
    """Continue a prompt with early exit; greedy without --seed."""
    options.check_output(None, json=as_json, plain=plain)
    from rich.text import Text

    from unembed.cli.model_loading import opened
    from unembed.cli.output import show
    from unembed.results import visible_rich

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    from unembed import early_exit

    found = early_exit.load(rule, lm).generate(prompt, max_new_tokens=new_tokens, seed=seed)
    if as_json:
        data = {
            "schema": "unembed.early_exit/1",
            "prompt": found.prompt,
            "text": found.text,
            "layers": list(found.layers),
            "n_layers": found.n_layers,
            "saved_layers": found.saved_layers,
            "seconds": found.seconds,
        }
        sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
        return
    layers = " ".join(map(str, found.layers))
    note = f"\nlast layer computed for each new token from the second: {layers}\n"
    saved = f"{found.saved_layers:.2f} of {found.n_layers} layers saved, on average over tokens"
    show(lambda _: Text.assemble(visible_rich(found.text, prose=True), note, saved), plain=plain)

"""`unembed early-exit`: fit, evaluate and use rules by which tokens exit early."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output, TextOutput
from unembed.options import OUT, AnySeed, Clusters, Corpus, NewTokens, Option, Prompt

if TYPE_CHECKING:
    from unembed.results import Table

Examples = Annotated[int, Option("Number of examples, one from each sentence.", "n", low=20)]
Rule = Annotated[Path, Option("A rule that `fit` saved.")]


@command("early-exit fit", "unembed early-exit fit --out rule.npz --examples 5000")
def fit(
    *,
    out: Annotated[Path, OUT],
    method: Annotated[
        Literal["sub_updates", "representation", "update", "both", "margin", "entropy", "agreement"],
        Option("The method; each is described above."),
    ] = "sub_updates",
    corpus: Corpus = None,
    examples: Examples = 5000,
    disagreement: Annotated[
        float | None, Option("Largest expected share of changed tokens, by risk control, such as 0.05.")
    ] = None,
    threshold: Annotated[
        str | None,
        Option("A number; or precision or f1, which set one per layer. Default: depends on the method."),
    ] = None,
    decision: Annotated[
        str | None,
        Option("Cost of a decision in blocks, such as 0.1, or: measured. Decide only where an exit saves more."),
    ] = None,
    clusters: Clusters = None,
    similarity: Annotated[
        Literal["ordered", "set"],
        Option("For sub_updates: ordered as in the released code, or set as in the paper."),
    ] = "ordered",
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: TextOutput = TextOutput(),
) -> None:
    """Fit a rule on random prefixes of sentences, choose its thresholds on others, and save it.

    Methods: sub_updates decides by the dominant sub-updates, in 200 clusters of values unless --clusters says
    otherwise; representation, update and both by a classifier on the stream; margin, entropy and agreement by the
    model's confidence.
    """
    level = _number_or_word(threshold, "--threshold", "precision", "f1")
    cost = _number_or_word(decision, "--decision", "measured")
    from unembed.results import check_writable

    check_writable(out)
    lm = opening.open(seed)
    from unembed import early_exit

    own: dict[str, Any] = {"clusters": clusters or 200, "similarity": similarity} if method == "sub_updates" else {}
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
    saturation = early_exit.saturation_table(lm, found)
    output.deliver(saturation if output.as_json else _with_units(saturation, lm.n_layers))
    if not output.as_json:
        print_explorer_link(opening, "labs/early-exit")


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


@command("early-exit evaluate", "unembed early-exit evaluate rule.npz --tradeoff")
def evaluate(
    rule: Rule,
    corpus: Corpus = None,
    examples: Examples = 1000,
    tradeoff: Annotated[bool, Option("List disagreement and layers saved for all thresholds.")] = False,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: Output = Output(),
) -> None:
    """Evaluate a rule's accuracy and saved layers on other examples."""
    lm = opening.open(seed)
    from unembed import early_exit

    fitted = early_exit.load(rule, lm)
    found = early_exit.examples(lm, corpus, examples, seed=1 if seed is None else seed, progress=_progress)
    table = fitted.tradeoff(found) if tradeoff else fitted.evaluate(found)
    output.deliver(_with_units(table, lm.n_layers) if output.for_terminal else table)
    if output.for_terminal:
        print_explorer_link(opening, "labs/early-exit")


def _with_units(table: Table, n_layers: int) -> Table:
    """The table with the unit of every number in the name of its column; --json, --csv and --html keep the names."""
    from unembed.results import Table

    names = {
        "accuracy": "tokens as the full model's, %",
        "disagreement": "tokens changed, %",
        "saved_layers": f"layers saved of {n_layers}, mean",
        "saved_layers_of_right": f"of them at unchanged tokens, of {n_layers}",
        "share_saved": "layers saved, %",
        "share": "share, %",
        "left_early": "tokens that left early, %",
        "exits_by_layer": "tokens that left after layer 0, 1, ...",
    }
    columns = {names.get(name, name): values for name, values in table.columns.items()}
    return Table(table.title, columns, table.provenance)


@command("early-exit generate", 'unembed early-exit generate rule.npz "Once upon a time" --new-tokens 40')
def generate(
    rule: Rule,
    prompt: Prompt,
    new_tokens: NewTokens = 20,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: TextOutput = TextOutput(),
) -> None:
    """Continue a prompt with early exit; greedy without --seed."""
    from rich.text import Text

    from unembed.cli.output import show
    from unembed.results import visible_rich

    lm = opening.open(seed)
    from unembed import early_exit

    found = early_exit.load(rule, lm).generate(prompt, max_new_tokens=new_tokens, seed=seed)
    if output.as_json:
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
    show(lambda _: Text.assemble(visible_rich(found.text, prose=True), note, saved), plain=output.plain)

"""The commands `unembed early-exit fit`, `evaluate` and `generate`, also for the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Screen
from unembed.early_exit.example_prefixes import examples as draw_examples
from unembed.early_exit.example_prefixes import saturation_table
from unembed.early_exit.fitting import fit
from unembed.early_exit.rule import load
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.options import OUT, AnySeed, Clusters, Corpus, ExitBasis, NewTokens, Option, Progress, Prompt
from unembed.results import Table, check_writable

Examples = Annotated[int, Option("Number of examples; each is a prefix of a sentence.", "n", low=20)]
Rule = Annotated[Path, Option("File of an exit rule that `unembed early-exit fit` saved.")]
_LAB = Screen("labs/early-exit")


def read_threshold(text: str) -> str | float:
    """Parse a threshold: a number, "precision" or "f1".

    Raises:
        InvalidInput: the text is another word.
    """
    return _number_or_word(text, "precision", "f1")


def read_decision(text: str) -> str | float:
    """Parse the option for the time of an exit decision: a fraction of a block's time, or the word "measured".

    Raises:
        InvalidInput: the text is neither.
    """
    return _number_or_word(text, "measured")


def _number_or_word(text: str, *words: str) -> str | float:
    try:
        return text if text in words else float(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is neither a number nor {' or '.join(words)}") from None


def fit_answer(
    lm: Decoder,
    *,
    out: Annotated[Path, OUT],
    method: Annotated[
        Literal["sub_updates", "representation", "update", "both", "margin", "entropy", "agreement"],
        Option("Method to use; the command's description explains each."),
    ] = "sub_updates",
    corpus: Corpus = None,
    examples: Examples = 5000,
    disagreement: Annotated[
        float | None,
        Option("Choose one threshold so that the expected share of changed tokens is at most this, such as 0.05."),
    ] = None,
    threshold: Annotated[
        str | float | None,
        Option(
            "Threshold of the exit score: a number for all layers; or precision or f1, the measure by which a "
            "threshold is chosen for each layer. Default: depends on the method.",
            parse=read_threshold,
        ),
    ] = None,
    decision: Annotated[
        str | float | None,
        Option(
            "Cost of one exit decision, as a share of a block's time, such as 0.1, or 'measured' to have it timed. "
            "With this option the rule decides only after layers where exits save more time than decisions cost.",
            parse=read_decision,
        ),
    ] = None,
    clusters: Clusters = None,
    similarity: Annotated[
        Literal["ordered", "set"],
        Option(
            "With --method sub_updates: compare clusters in order, as in the paper's released code, or as sets, "
            "as in the paper."
        ),
    ] = "ordered",
    basis: ExitBasis = None,
    seed: AnySeed = None,
    progress: Progress = None,
) -> Answer:
    """Fit a rule that decides after which layer a token's computation can stop (early exit), and save it.

    The rule is fitted on random prefixes of sentences, and its thresholds are chosen on others. Methods: sub_updates
    compares the largest sub-updates of memories (FFN neurons), in 200 clusters of value vectors by default;
    representation, update and both use a classifier on the stream, the FFN's update, or their sum; margin, entropy and
    agreement use the prediction after each layer.

    If the model has a fitted lens, this lens computes the prediction after a layer, also for tokens that exit. The
    paper uses the logit lens (--basis final). The table shows saturation layers by either lens.

    Caution: The rule is valid for text like that on which it was fitted; `unembed early-exit evaluate` measures it on
    other examples.
    """
    check_writable(out)
    own: dict[str, Any] = {"clusters": clusters or 200, "similarity": similarity} if method == "sub_updates" else {}
    chosen = 38 if seed is None else seed
    if progress is not None:
        progress("examples", 0, examples)
    found = draw_examples(lm, corpus, examples, seed=chosen, basis=basis, progress=_of_examples(progress))
    if progress is not None:
        progress("examples", len(found), len(found))
    own |= {"threshold": threshold, "disagreement": disagreement, "decision": decision}
    rule = fit(lm, found, method, seed=chosen, **own)
    rule.save(out)
    table = saturation_table(lm, found)
    note = f"Saved in {out}: {rule.method}, {rule.calibration}."
    return Answer.of_table(_with_units(_folded(table), lm.n_layers), note=note, data=table, screen=_LAB)


def evaluate_answer(
    lm: Decoder,
    rule: Rule,
    *,
    corpus: Corpus = None,
    examples: Examples = 1000,
    tradeoff: Annotated[
        bool, Option("List many thresholds, each with the share of changed tokens and the number of layers saved.")
    ] = False,
    seed: AnySeed = None,
    progress: Progress = None,
) -> Answer:
    """Measure how many layers an early-exit rule saves, and how many tokens it changes, on new examples.

    Caution: Saved layers are not saved time, because the rule's decisions take time, too.
    """
    fitted = load(rule, lm)
    drawn = 1 if seed is None else seed
    found = draw_examples(lm, corpus, examples, seed=drawn, basis=fitted.basis, progress=_of_examples(progress))
    table = fitted.tradeoff(found) if tradeoff else fitted.evaluate(found)
    return Answer.of_table(_with_units(table, lm.n_layers), data=table, screen=_LAB)


def generate_answer(
    lm: Decoder, rule: Rule, prompt: Prompt, *, new_tokens: NewTokens = 20, seed: AnySeed = None
) -> Answer:
    """Continue a prompt with early exit; decoding is greedy unless --seed is given.

    Caution: If an early exit changes a token, the text continues from that token, so it can differ more and more from
    the full model's text.
    """
    fitted = load(rule, lm)
    found = fitted.generate(prompt, max_new_tokens=new_tokens, seed=seed)
    columns = {
        "text": [found.text],
        "last_layer_computed_for_each_new_token_from_the_second": [list(found.layers)],
        f"layers_saved_of_{found.n_layers},_mean_over_tokens": [found.saved_layers],
    }
    data = {
        "schema": "unembed.early_exit/1",
        "prompt": found.prompt,
        "text": found.text,
        "layers": list(found.layers),
        "n_layers": found.n_layers,
        "saved_layers": found.saved_layers,
        "seconds": found.seconds,
    }
    table = Table(f"Continuation of {prompt!r} with early exit", columns, lm.provenance(seed=seed, basis=fitted.basis))
    return Answer.of_table(table, data=data)


def _of_examples(progress: Progress) -> Any:
    return None if progress is None else lambda done, total: progress("examples", done, total)


def _folded(table: Table) -> Table:
    """Return the table by layer with one last row for all layers at which no example saturates."""
    rows = list(table.rows())
    empty = [n for n, row in enumerate(rows) if not any(value for name, value in row.items() if name != "layer")]
    if len(empty) < 2:
        return table
    full = [n for n in range(len(rows)) if n not in empty]
    columns: dict[str, list[Any]] = {
        name: [*(values[n] for n in full), values[empty[0]]] for name, values in table.columns.items()
    }
    columns["layer"] = [*(str(layer) for layer in columns["layer"][:-1]), f"each of {len(empty)} others"]
    return Table(table.title, columns, table.provenance)


def _with_units(table: Table, n_layers: int) -> Table:
    """Rename the columns: the new names are in words, and give the unit of every number."""
    names = {
        "accuracy": "tokens as the full model's, %",
        "disagreement": "tokens changed, %",
        "saved_layers": f"layers saved of {n_layers}, mean",
        "saved_layers_of_right": f"of them at unchanged tokens, of {n_layers}",
        "share_saved": "layers saved, %",
        "share": "share, %",
        "lens_share": "by the fitted lens: share, %",
        "lens_examples": "by the fitted lens: examples",
        "left_early": "tokens that left early, %",
        "exits_by_layer": "tokens that left after layer 0, 1, ...",
    }
    if "lens_share" in table.columns:
        names |= {"examples": "by the logit lens: examples", "share": "by the logit lens: share, %"}
    columns = {names.get(name, name): values for name, values in table.columns.items()}
    return Table(table.title, columns, table.provenance)


ANALYSES = (
    Analysis(
        "early-exit fit", fit_answer, Needs.MODEL, Cost.MINUTES,
        "unembed early-exit fit --out rule.npz --examples 5000",
    ),
    Analysis(
        "early-exit evaluate", evaluate_answer, Needs.MODEL, Cost.MINUTES,
        "unembed early-exit evaluate rule.npz --tradeoff",
    ),
    Analysis(
        "early-exit generate", generate_answer, Needs.MODEL, Cost.SECONDS,
        'unembed early-exit generate rule.npz "Once upon a time" --new-tokens 40',
    ),
)  # fmt: skip

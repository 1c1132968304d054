"""Layers' predictions and active memories against loops in float64: one prefix at a time, each run on its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.reports.geva2021.tiny_study import tiny_study
from tests.sweeps.recorder import lettered, texts
from unembed.corpus import open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.errors import InvalidInput
from unembed.jacobian import fit_lens
from unembed.language_model import LanguageModel
from unembed.names import StreamPoint
from unembed.reports.geva2021.examples import CoefficientSizes, Examples, draw_positions
from unembed.reports.geva2021.parts.refinement import CLASSES, breakdown
from unembed.sweeps import sweep

FAMILIES = ("opt", "gpt2", "llama", "gptj", "gemma2", "olmo2", "qwen2_moe")
FRACTION = 0.3


def distribution(lm: LanguageModel, x: Tensor, basis: str, layer: int, point: StreamPoint | None = None) -> Tensor:
    """Probabilities of every token, by the model's own modules, the matrix alone or the model's lens.

    `point` is where the vector lies in the stream; None for a vector that is added to the stream.
    """
    if basis == "jacobian":
        assert lm.lens is not None
        return (lm.lens.direction(x, layer) if point is None else lm.lens.read(x, layer, point)).softmax(-1)
    if basis == "raw":
        return (x @ lm.weights.W_U).softmax(-1)
    norm, cap = lm.structure.final_norm, getattr(lm.hf.config, "final_logit_softcapping", None)
    logits = lm.hf.get_output_embeddings()(x if norm is None else norm.module(x))  # type: ignore[misc]
    return (logits if cap is None else cap * (logits / cap).tanh()).softmax(-1)


def values_in_the_stream(lm: LanguageModel, layer: int) -> Tensor:
    """The values times the gain of the norm behind the FFN, where there is one."""
    values = lm.weights.W_out[layer]
    if lm.hf.config.model_type not in ("gemma2", "olmo2"):
        return values
    norm = lm.hf.model.layers[layer].post_feedforward_layernorm
    return values * (norm.weight + (1 if lm.hf.config.model_type == "gemma2" else 0))


Tops = list[tuple[list[int], list[int]]]


@torch.no_grad()
def tops_of_values(lm: LanguageModel, basis: str) -> Tops:
    """The top token of each value of each layer, and that of the negated value: the same for every prefix."""

    def top(v: Tensor, layer: int) -> int:
        return int(distribution(lm, v, basis, layer).argmax())

    every = [values_in_the_stream(lm, layer) for layer in range(lm.n_layers)]
    return [([top(v, n) for v in values], [top(-v, n) for v in values]) for n, values in enumerate(every)]


@torch.no_grad()
def brute(lm: LanguageModel, prefix: list[int], basis: str, tops: Tops) -> dict[str, list[Any]]:
    """Every number of one prefix, layer by layer, from a run of that prefix alone."""
    run = lm.run(torch.tensor([prefix]), ("coefficients", "mlp_out", "resid_post"))
    last = lm.n_layers - 1
    final = int(distribution(lm, run["resid_post"][-1, 0, -1], basis, last, "resid_post").argmax())
    found: dict[str, list[Any]] = {}
    for layer in range(lm.n_layers):
        y, o = run["mlp_out"][layer, 0, -1], run["resid_post"][layer, 0, -1]
        r, m, values = o - y, run["coefficients"][layer, 0, -1], values_in_the_stream(lm, layer)
        before: StreamPoint = "resid_post" if lm.structure.blocks[layer].parallel else "resid_mid"
        p, of_update = distribution(lm, r, basis, layer, before), distribution(lm, y, basis, layer)
        update = int(of_update.argmax())
        output = int(distribution(lm, o, basis, layer, "resid_post").argmax())
        raised, lowered = tops[layer]
        of_values = [*raised, *lowered] if lm.is_signed(layer) else raised
        pushes = [up if c > 0 else down for up, down, c in zip(raised, lowered, m, strict=True)]
        sizes = sorted((abs(float(c)) * float(v.norm()) for v, c in zip(values, m, strict=True)), reverse=True)
        carrying, carried = 0, 0.0
        while carried < 0.9 * sum(sizes):
            carried, carrying = carried + sizes[carrying], carrying + 1
        largest, n = float(m.abs().max()), len(m)
        agreeing = sum(c != 0 and t == update for c, t in zip(m.tolist(), pushes, strict=True))
        row = {
            "residual": int(p.argmax()),
            "update": update,
            "output": output,
            "output_in_residual": int((p > p[output]).sum()) + 1,
            "output_in_update": int((of_update > of_update[output]).sum()) + 1,
            "probability": float(p[final]),
            "above_zero": sum(c > 0 for c in m.tolist()) / n,
            "above_fraction": sum(abs(c) >= FRACTION * largest and c != 0 for c in m.tolist()) / n,
            "carrying": carrying / n,
            "participation": sum(sizes) ** 2 / sum(x**2 for x in sizes) / n,
            "any_value": update in of_values,
            "any_active": agreeing > 0,
            "any_output": any(c != 0 and t == output for c, t in zip(m.tolist(), pushes, strict=True)),
            "agreeing": agreeing,
            "stream_length": float(o.norm()),
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


@cache
def swept(
    family: str, basis: str, tokens: int = 200
) -> tuple[LanguageModel, TokenStream, np.ndarray, dict[str, np.ndarray]]:
    """A sweep with some examples in it."""
    lm = lettered(family, torch.float64)
    if basis == "jacobian":
        lm.use_lens(fit_lens(lm, texts(40), 3, 12))
    corpus = open_corpus(texts(8))
    text = TokenStream.of(corpus.segments(lm))
    places = draw_positions(text, 12, "prefixes", 3, "letters")
    # Rows one at a time where the softmax of transformers gives NaN at padding in float64.
    tokens = 1 if family == "gemma2" else tokens
    (found,) = sweep(lm, corpus, [Examples(places.tolist(), basis, FRACTION)], tokens_per_batch=tokens)
    return lm, text, places, found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("basis", ["final", "raw", "jacobian"])
def test_every_number_is_that_of_the_prefix_run_alone(family: str, basis: str) -> None:
    lm, text, places, found = swept(family, basis)
    rtol = 1e-4 if basis == "jacobian" else 1e-5  # a lens reads in float32
    assert found["done"].all()
    tops = tops_of_values(lm, basis)
    for i, place in enumerate(places.tolist()):
        expected = brute(lm, text.prefix(place).tolist(), basis, tops)
        for name, values in expected.items():
            got = found[name][:, i]
            if got.dtype.kind == "f":
                np.testing.assert_allclose(got, values, rtol=rtol, atol=1e-7, err_msg=f"{name} of example {i}")
            else:
                assert got.tolist() == values, f"{name} of example {i}"


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_a_memory_is_active_from_its_own_usual_size_on(family: str) -> None:
    lm, text, places, _ = swept(family, "final")
    corpus = open_corpus(texts(8))
    (sizes,) = sweep(lm, corpus, [CoefficientSizes(places.tolist())], tokens_per_batch=77)
    runs = [lm.run(torch.tensor([text.prefix(p).tolist()]), "coefficients") for p in places.tolist()]
    m = torch.stack([run["coefficients"][:, 0, -1] for run in runs], dim=1)  # layer example memory
    usual = m.square().mean(dim=1).sqrt()
    np.testing.assert_allclose(np.stack(sizes), usual.numpy(), rtol=1e-5)
    reducer = Examples(places.tolist(), "final", FRACTION, usual=[row.numpy() for row in usual])
    (found,) = sweep(lm, corpus, [reducer], tokens_per_batch=200)
    expected = ((m.abs() >= usual[:, None]) & (usual > 0)[:, None]).float().mean(dim=-1)
    np.testing.assert_allclose(found["above_usual"], expected.numpy(), atol=1e-6)


def test_relu_and_signed_activations_both_occur() -> None:
    assert float(swept("opt", "final")[3]["above_zero"].max()) < 1
    llama = lettered("llama", torch.float64)
    assert float(llama.run("the cat", "coefficients")["coefficients"].min()) < 0


def test_any_split_and_any_batch_size_give_the_same() -> None:
    lm, text, places, whole = swept("gpt2", "final")
    corpus = open_corpus(texts(8))
    halves = []
    for part in (places[:5], places[5:]):
        reducer = Examples(places.tolist(), "final", FRACTION)
        reducer.start(lm)
        seen = Examples(part.tolist(), "final", FRACTION)
        (found,) = sweep(lm, corpus, [seen], tokens_per_batch=77)
        at = np.isin(places, part)
        for name in reducer._found:
            reducer._found[name][:, at] = found[name]
        reducer._done = at
        halves.append(reducer)
    halves[0].merge(halves[1])
    again = Examples(places.tolist(), "final", FRACTION)
    again.start(lm)
    again.load_state(halves[0].state())
    for name, values in again.result().items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-5, atol=1e-7, err_msg=name)
    assert text.n_segments > 5


def test_the_breakdown_has_exactly_one_class_for_every_case() -> None:
    r, y, o = np.array([(r, y, o) for r in range(3) for y in range(3) for o in range(3)]).T
    found = breakdown(r, y, o)
    assert list(found) == list(CLASSES)
    assert (sum(v.astype(int) for v in found.values()) == 1).all()
    for kind, case in {
        "residual": (1, 2, 1),
        "ffn": (1, 2, 2),
        "agreement": (1, 1, 1),
        "composition": (0, 1, 2),
        "joint": (1, 1, 2),
    }.items():
        at = (r == case[0]) & (y == case[1]) & (o == case[2])
        assert found[kind][at].all()


def test_settings_name_the_places() -> None:
    assert Examples([1, 2]).settings() != Examples([1, 3]).settings()


def test_random_examples_are_of_the_requested_kind_and_a_small_corpus_is_refused() -> None:
    _, _, text, _ = tiny_study(bos=True)
    everything = set(text.prefix_positions().tolist())
    drawn = draw_positions(text, 20, "prefixes", 0, "letters")
    assert len(set(drawn.tolist())) == 20 and set(drawn.tolist()) <= everything
    assert drawn.tolist() == draw_positions(text, 20, "prefixes", 0, "letters").tolist()
    assert drawn.tolist() != draw_positions(text, 20, "prefixes", 1, "letters").tolist()
    one_each = draw_positions(text, 10, "sentences", 0, "letters")
    assert len(set(text.segment(one_each).tolist())) == 10 and set(one_each.tolist()) <= everything
    with pytest.raises(InvalidInput, match=rf"it has {len(everything):,} prefixes .*examples={len(everything)}"):
        draw_positions(text, 10**6, "prefixes", 0, "letters")
    with pytest.raises(InvalidInput, match="sentences of text"):
        draw_positions(text, 10**6, "sentences", 0, "letters")

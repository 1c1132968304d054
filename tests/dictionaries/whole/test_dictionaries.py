"""Dictionaries against plain reimplementations: features, files, edits, triggers and attributions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.conftest import tiny
from tests.stream.test_massive_activations import with_massive_token
from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.dictionaries import (
    Dictionary,
    attach,
    open_dictionary,
    save_dictionary,
    train_dictionary,
)
from unembed.errors import InvalidInput, ModelUnavailable, OutOfRange, Unsupported
from unembed.stream import Edit
from unembed.stream.massive_activations import MASSIVE
from unembed.sweeps import sweep

D, F = 48, 64
F32: dict[str, Any] = dict(rtol=1e-5, atol=1e-6)


def _random(seed: int = 0, **fields: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[0] ** 0.5

    found = {"W_enc": normal(D, F), "b_enc": 0.1 * normal(F), "W_dec": normal(F, D), "b_dec": 0.1 * normal(D)}
    found |= {"threshold": normal(F).abs(), "r_mag": 0.3 * normal(F), "b_mag": 0.1 * normal(F), "b_gate": normal(F)}
    return found


def _one(activation: str = "jumprelu", seed: int = 0, **fields: Any) -> Dictionary:
    w = _random(seed)
    parts = {"threshold": w["threshold"]} if activation == "jumprelu" else {}
    parts |= {"k": 5} if activation == "topk" else {}
    parts |= {"r_mag": w["r_mag"], "b_mag": w["b_mag"]} if activation == "gated" else {}
    made: dict[str, Any] = dict(layer=1, reads="resid_post", writes="resid_post") | parts | fields
    return Dictionary(w["W_enc"], w["b_enc"], (w["W_dec"],), w["b_dec"], activation, **made)


def _plain(d: Dictionary, x: Tensor) -> Tensor:
    """Features position by position, feature by feature, in float64."""
    x = x.double() - (0 if d.b_in is None else d.b_in.double())
    out = torch.zeros(*x.shape[:-1], d.n_features, dtype=torch.float64)
    for at in np.ndindex(*x.shape[:-1]):
        product = [float(x[at] @ d.W_enc[:, j].double()) for j in range(d.n_features)]
        pre = [p + float(d.b_enc[j]) for j, p in enumerate(product)]
        best = sorted(pre, reverse=True)[: d.k or 0]
        for j, p in enumerate(pre):
            value = max(p, 0.0)
            if d.activation == "jumprelu":
                assert d.threshold is not None
                value = value if p > float(d.threshold[j]) else 0.0
            elif d.activation == "topk":
                value = value if p in best else 0.0
            elif d.activation == "gated":
                assert d.r_mag is not None and d.b_mag is not None
                magnitude = product[j] * float(d.r_mag[j].double().exp()) + float(d.b_mag[j])
                value = max(magnitude, 0.0) if p > 0 else 0.0
            out[(*at, j)] = value
    return out


@pytest.mark.parametrize("activation", ["relu", "jumprelu", "topk", "gated"])
@pytest.mark.parametrize("shifted", [False, True])
def test_features_are_those_of_a_plain_reimplementation(activation: str, shifted: bool, tokens: Tensor) -> None:
    lm = tiny("llama")
    d = _one(activation, b_in=_random(3)["b_dec"] if shifted else None)
    x = lm.run(tokens, "resid_post").at("resid_post", 1)
    found = attach(lm, d).features(tokens)
    assert float((found > 0).float().mean()) > 0.02
    torch.testing.assert_close(found.double(), _plain(d, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "jumprelu", "topk", "gated"])
def test_a_dictionary_written_in_saelens_layout_is_read_back(activation: str, tmp_path: Path) -> None:
    d = _one(activation, b_in=_random(0)["b_dec"], layer=4, reads="mlp_out", writes="mlp_out")
    again = open_dictionary(save_dictionary(d, tmp_path / "d"))
    assert isinstance(again, Dictionary)
    assert (again.layer, again.reads, again.writes, again.activation, again.k) == (
        4,
        "mlp_out",
        "mlp_out",
        activation,
        d.k,
    )
    x = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again.encode(x), d.encode(x)) and torch.equal(again.decode(d.encode(x)), d.decode(d.encode(x)))


@pytest.mark.parametrize("activation", ["relu", "jumprelu", "topk", "gated"])
@pytest.mark.parametrize("writes", ["mlp_in", "mlp_out"])
def test_what_the_encoder_subtracts_is_written_too(activation: str, writes: str, tmp_path: Path) -> None:
    d = _one(activation, b_in=_random(3)["b_dec"], layer=None, reads="mlp_in", writes=writes)
    again = open_dictionary(save_dictionary(d, tmp_path / "d"))
    assert isinstance(again, Dictionary) and (again.layer, again.reads, again.writes) == (None, "mlp_in", writes)
    x = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    assert float((d.encode(x) > 0).float().mean()) > 0.02
    torch.testing.assert_close(again.encode(x).double(), _plain(d, x), rtol=1e-4, atol=1e-5)


def test_gemma_scopes_layout_is_read_from_npz_and_safetensors(tmp_path: Path) -> None:
    w = {n: t for n, t in _random().items() if n in ("W_enc", "b_enc", "W_dec", "b_dec", "threshold")}
    folder = tmp_path / "gemma-scope-2b-pt-mlp" / "layer_7" / "width_64"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", allow_pickle=False, **{n: t.numpy() for n, t in w.items()})
    d = open_dictionary(tmp_path / "gemma-scope-2b-pt-mlp", "layer_7/width_64")
    assert isinstance(d, Dictionary) and (d.layer, d.reads, d.activation) == (7, "mlp_out", "jumprelu")
    other = tmp_path / "gemma-scope-2b-pt-transcoders" / "layer_3"
    other.mkdir(parents=True)
    save_file(w, other / "params.safetensors")
    t = open_dictionary(tmp_path / "gemma-scope-2b-pt-transcoders", "layer_3")
    assert isinstance(t, Dictionary) and (t.reads, t.writes, t.layer) == ("mlp_in", "mlp_out", 3)
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(1))
    pre = x @ w["W_enc"] + w["b_enc"]
    torch.testing.assert_close(d.encode(x), torch.where(pre > w["threshold"], pre.relu(), 0.0), **F32)


def _cross_layer(folder: Path, n: int = 2) -> list[dict[str, Tensor]]:
    stored = []
    for layer in range(n):
        w = _random(10 + layer)
        W_dec = torch.stack([_random(20 + 5 * layer + o)["W_dec"] for o in range(n - layer)], dim=1)
        encoder = {
            f"W_enc_{layer}": w["W_enc"].T.contiguous(),
            f"b_enc_{layer}": w["b_enc"],
            f"b_dec_{layer}": w["b_dec"],
        }
        encoder[f"threshold_{layer}"] = w["threshold"]
        save_file(encoder, folder / f"W_enc_{layer}.safetensors")
        save_file({f"W_dec_{layer}": W_dec.contiguous()}, folder / f"W_dec_{layer}.safetensors")
        stored.append({**w, "W_dec": W_dec})
    (folder / "config.json").write_text(json.dumps({"feature_input_hook": "hook_resid_mid"}))
    return stored


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "qwen2_moe"])
def test_a_cross_layer_transcoder_adds_up_with_its_errors(family: str, tmp_path: Path, tokens: Tensor) -> None:
    lm = tiny(family)
    stored = _cross_layer(tmp_path)
    attached = attach(lm, tmp_path)
    seen = lm.run(tokens[:1], ("resid_mid", "mlp_out"))
    features = []
    for layer, w in enumerate(stored):
        pre = seen.at("resid_mid", layer) @ w["W_enc"] + w["b_enc"]
        features.append(torch.where(pre > w["threshold"], pre.relu(), 0.0))
        torch.testing.assert_close(attached.features(tokens[:1], layer), features[-1], **F32)
    rebuilt = features[0] @ stored[0]["W_dec"][:, 1] + features[1] @ stored[1]["W_dec"][:, 0] + stored[1]["b_dec"]
    torch.testing.assert_close(attached.error(tokens[:1], 1), seen.at("mlp_out", 1) - rebuilt, rtol=1e-4, atol=1e-5)
    found = attached.attribution(tokens[:1], 11)
    assert found.error < 1e-5
    labels = [row.label for row in found.rows]
    assert "ffn 0" not in labels and {"dictionary error 0", "dictionary error 1", "attention 1"} <= set(labels)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "granite"])
@pytest.mark.parametrize("point", ["resid_pre", "resid_post", "mlp_out", "attn_out"])
def test_an_attribution_by_feature_adds_up_with_the_error_in_a_row(family: str, point: str, tokens: Tensor) -> None:
    lm = tiny(family)
    attached = attach(lm, _one("relu", seed=2), 1 if point == "resid_pre" else 0, point)
    whole = lm.trace(tokens[0]).attribution(11)
    found = attached.attribution(tokens[:1], 11)
    assert found.error < 1e-5 and found.logit == pytest.approx(whole.logit)
    rows = {row.label: row.contribution for row in found.rows}
    layer = attached.layers[0]
    features = attached.features(tokens[:1])[0, -1]
    assert sum(label.startswith("feature ") for label in rows) == int((features != 0).sum())
    assert abs(rows[f"dictionary error {layer}"]) > 1e-3
    stream = point.startswith("resid")
    expected = {row.label: row.contribution for row in whole.rows}
    last = layer if point == "resid_post" else layer - 1
    for row in whole.rows:
        gone = stream and (row.label in ("embedding", "positions") or (row.layer is not None and row.layer <= last))
        gone = gone or (row.label == {"mlp_out": "ffn 0", "attn_out": "attention 0"}.get(point))
        assert (row.label in rows) != gone or row.label.endswith("bias"), row.label
        if not gone:
            assert rows[row.label] == pytest.approx(expected[row.label], rel=1e-4, abs=1e-6)


def test_against_another_token_and_in_half_precision(tokens: Tensor) -> None:
    d = _one("topk")
    assert attach(tiny("llama"), d).attribution(tokens[:1], 11, against=23).error < 1e-5
    assert attach(tiny("llama", torch.bfloat16), d).attribution(tokens[:1], 11).error < 5e-2


@pytest.mark.parametrize("point", ["resid_post", "mlp_out"])
def test_edits_keep_the_error_and_equal_a_hand_written_hook(point: str, tokens: Tensor) -> None:
    lm = tiny("llama")
    d = _one("relu", seed=2)
    attached = attach(lm, d, 0, point)
    on = int(attached.features(tokens[:1])[0, -1].argmax())
    with attached.edited([Edit("feature", "set", 0, on, 3.0), Edit("feature", "add", 0, (on + 1) % F, 0.5)]):
        edited = lm.run(tokens, point)
    own = lm.run(tokens, point).at(point, 0)
    f = d.encode(own)
    expected = own + (3.0 - f[..., [on]]) * d.W_dec[0][on] + 0.5 * d.W_dec[0][(on + 1) % F]
    torch.testing.assert_close(edited.at(point, 0), expected, rtol=1e-4, atol=1e-5)

    def by_hand(t: Tensor, layer: int) -> Tensor | None:
        return expected if layer == 0 else None

    torch.testing.assert_close(edited.logits, lm.run(tokens, hooks={point: by_hand}).logits, rtol=1e-4, atol=1e-5)
    with attached.edited([Edit("feature", "scale", 0, on, 1.0)]):
        torch.testing.assert_close(lm.run(tokens).logits, lm.run(tokens, edits=()).logits, rtol=1e-4, atol=1e-5)
    with attached.edited([]):
        pass


def test_an_edit_of_a_transcoder_reads_before_and_writes_behind_the_ffn(tokens: Tensor) -> None:
    lm = tiny("llama")
    d = _one("relu", seed=2, reads="mlp_in", writes="mlp_out", layer=0)
    attached = attach(lm, d)
    with attached.edited([Edit("feature", "set", 0, 7, 2.0)]):
        edited = lm.run(tokens, "mlp_out")
    seen = lm.run(tokens, ("mlp_in", "mlp_out"))
    f = d.encode(seen.at("mlp_in", 0))[..., [7]]
    torch.testing.assert_close(
        edited.at("mlp_out", 0), seen.at("mlp_out", 0) + (2.0 - f) * d.W_dec[0][7], rtol=1e-4, atol=1e-5
    )


def test_triggers_are_what_sorting_all_features_gives() -> None:
    lm = lettered("llama")
    d = _one("jumprelu", seed=4)
    corpus = open_corpus(texts(20))
    found = attach(lm, d).triggers(corpus, top=4, tokens_per_batch=200)
    values, facts = sweep(lm, corpus, [Everything("resid_post")], tokens_per_batch=200)[0]
    f = d.encode(values[1])
    for j in range(F):
        best, order = f[:, j].sort(descending=True, stable=True)
        n = min(4, int((best > 0).sum()))
        assert found.values[j][:n].tolist() == pytest.approx(best[:n].tolist(), rel=1e-5)
        assert found.positions[j][:n].tolist() == facts["position"][order[:n]].tolist()
        assert (found.positions[j][n:] == -1).all()
    j = int(f.max(0).values.argmax())
    activation, text = found.of(j)[0]
    assert activation == pytest.approx(float(f[:, j].max()), rel=1e-5) and text


def test_readings_search_names_and_clusters_of_features() -> None:
    lm = lettered("llama")
    attached = attach(lm, _one("relu"))
    ids, scores = attached.readings(top=5, show_unlearned=True)
    expected = (attached.part(1).W_dec[0] @ lm.weights.W_U).topk(5, dim=1)
    torch.testing.assert_close(scores, expected.values, **F32)
    assert torch.equal(ids, expected.indices)
    token = int(ids[3, 0])
    table = attached.promoting(token, 3)
    best = (attached.part(1).W_dec[0] @ lm.weights.W_U[:, token]).topk(3)
    assert table["feature"] == [f"L1F{i}" for i in best.indices.tolist()]
    assert len(set(attached.clusters(6).tolist())) == 6
    assert attached.concepts([(1, 3), (1, 4)]).labels == ("L1F3", "L1F4")


def test_what_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    lm = tiny("llama")
    folder = save_dictionary(_one("relu"), tmp_path / "d")
    config = json.loads((folder / "cfg.json").read_text())
    for change, message in (
        ({"normalize_activations": "layer_norm"}, "normalize_activations"),
        ({"architecture": "temporal"}, "'temporal' is not supported"),
        ({"metadata": {"hook_name": "blocks.1.attn.hook_z"}}, "not a capture point"),
    ):
        (folder / "cfg.json").write_text(json.dumps(config | change))
        with pytest.raises(Unsupported, match=message):
            open_dictionary(folder)
    with pytest.raises(InvalidInput, match="contains neither"):
        open_dictionary(tmp_path)
    with pytest.raises(ModelUnavailable, match="no such folder"):
        open_dictionary(tmp_path / "none")
    with pytest.raises(InvalidInput, match="reads vectors of 48 channels, but the model's have 64"):
        attach(tiny_of_64(), _one("relu"))
    attached = attach(lm, _one("relu"))
    with pytest.raises(OutOfRange, match="encodes only layers"):
        attached.feature(0, 1)
    with pytest.raises(OutOfRange, match="counted from 0"):
        attached.feature(1, F)


def tiny_of_64() -> Any:
    from tests.models.decoder_classes import tiny_model
    from unembed.language_model import load

    return load(tiny_model("llama"))


def test_training_explains_more_than_its_beginning_and_repeats_from_its_seed(tmp_path: Path) -> None:
    lm = lettered("llama")
    reports: list[dict[str, Any]] = []
    options: dict[str, Any] = dict(features=96, k=8, steps=300, batch=128, rate=3e-3)
    d = train_dictionary(lm, texts(40), 1, out=tmp_path / "d", progress=reports.append, **options)
    assert reports[-1]["step"] == 300 and reports[-1]["unexplained"] < 0.5 * reports[0]["unexplained"]
    again = open_dictionary(tmp_path / "d")
    assert isinstance(again, Dictionary) and torch.equal(again.W_enc, d.W_enc)
    x = lm.run(lm.encode(texts(40)[0].split("\n")[0]), "resid_post").at("resid_post", 1)
    left = (x - d.decode(d.encode(x))).square().sum() / (x - x.mean((0, 1))).square().sum()
    assert float(left) < 0.5
    assert int((d.encode(x) > 0).sum(-1).max()) <= 8
    other = train_dictionary(lm, texts(40), 1, **options)
    assert torch.equal(other.W_dec[0], d.W_dec[0])
    torch.testing.assert_close(d.W_dec[0].norm(dim=1), torch.ones(96), rtol=1e-5, atol=1e-5)
    assert attach(lm, d).attribution(torch.arange(3, 12), 11).error < 1e-5


def test_training_learns_the_usual_activations_where_some_are_massive() -> None:
    lm, options = with_massive_token("llama", "q"), dict(features=96, k=8, steps=300, batch=128, rate=3e-3)
    written = [text.replace("\n", "\nq ") for text in texts(40)]
    reports: list[dict[str, Any]] = []
    d = train_dictionary(lm, written, 1, progress=reports.append, **options)
    ids = lm.encode("q " + texts(40)[0].split("\n")[0])
    x = lm.run(ids, "resid_post").at("resid_post", 1)[0]
    usual = x.norm(dim=-1) <= MASSIVE * x.norm(dim=-1).median()
    assert 0 < int((~usual).sum()) < 3, "the premise"
    rows = x[usual]
    left = float((rows - d.decode(d.encode(rows))).square().sum() / (rows - rows.mean(0)).square().sum())
    assert left < 0.6 and reports[-1]["unexplained"] == pytest.approx(left, abs=0.25)

"""Models in which some layers or circuits do not exist: those that exist are exact, the others null with the reason."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from tests.models.decoder_classes import tiny_config, tiny_model
from tests.sweeps.recorder import lettered
from unembed.attention import Circuits
from unembed.attention.behaviour.in_context import head_output_lengths, scores_on_text
from unembed.attention.behaviour.induction import induction_missing
from unembed.attention.paths.erasure import memory_management
from unembed.attention.paths.geometry import NO_MATRICES, virtual_weights
from unembed.attention.paths.memory_connections import memory_connections
from unembed.attention.paths.weights_between import readers_of, writers_of
from unembed.attention.weights.missing_circuits import missing_circuits
from unembed.errors import PointMissing, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.names import HeadBasis

TEXT = ["the cat sat on the mat and the cat sat on the mat again. " * 4] * 2


@cache
def _lm(model_type: str) -> LanguageModel:
    return load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)


@pytest.mark.parametrize(
    ("model_type", "basis", "ov", "qk"),
    [
        ("llama", "folded", {}, {}),
        ("qwen3_next", "raw", {}, {}),
        ("qwen3_next", "folded", {3: "a gate of each position"}, {}),
        ("deepseek_v3", "folded", {}, dict.fromkeys(range(4), "when the model runs, the content part of a key")),
        ("gemma4_text", "folded", *[dict.fromkeys((2, 3), "it uses the keys and values of another layer")] * 2),
        ("jamba", "folded", {}, {}),
    ],
)
def test_the_reasons_name_the_part_of_the_architecture(
    model_type: str, basis: HeadBasis, ov: dict[int, str], qk: dict[int, str]
) -> None:
    missing = missing_circuits(_lm(model_type), basis)
    for found, expected in ((missing.ov, ov), (missing.qk, qk)):
        assert found.keys() == expected.keys()
        assert all(found[layer].startswith(why) for layer, why in expected.items())


def test_gemma_4_composes_as_its_projections_do_and_its_scores_add_up() -> None:
    lm = _lm("gemma4_text")
    first, second = (layer.self_attn for layer in lm.hf.model.layers[:2])
    circuits = Circuits(lm)
    d = 16

    def part(weight: torch.Tensor, head: int) -> torch.Tensor:
        return weight[d * head : d * (head + 1)].double().T  # (d_model, d_head)

    for mode, ratios in circuits.compositions("raw").items():
        assert ratios[2:].isnan().all() and ratios[:, :, 2:].isnan().all() and ratios[:2, :, :2].isfinite().all()
        for a in range(4):
            for b in range(4):
                W_V, W_O = part(first.v_proj.weight, a // 2), first.o_proj.weight[:, d * a : d * (a + 1)].double()
                W_Q, W_K = part(second.q_proj.weight, b), part(second.k_proj.weight, b // 2)
                out = part(second.v_proj.weight, b // 2) @ second.o_proj.weight[:, d * b : d * (b + 1)].double().T
                read = {"q": W_Q @ W_K.T, "k": W_K @ W_Q.T, "v": out}[mode]
                written = W_V @ W_O.T
                expected = (written @ read).norm() / written.norm() / read.norm()
                torch.testing.assert_close(ratios[0, a, 1, b], expected, rtol=1e-4, atol=1e-6)
    for layer in (0, 1):  # refuses where its terms miss the scores of the run
        assert circuits.score_terms(torch.arange(3, 12), layer, 1).to_table()["score"]
    with pytest.raises(Unsupported, match="keys and values of another layer"):
        circuits.scores_by_offset(2, 0, [1])


def test_without_a_qk_circuit_heads_compose_through_values_alone() -> None:
    circuits = Circuits(_lm("deepseek_v3"))
    found = circuits.compositions("folded")
    assert found["q"].isnan().all() and found["k"].isnan().all() and (found["v"][0, :, 1:] > 0).all()
    with pytest.raises(Unsupported, match="content part of a key is divided by the norm of its latent vector"):
        circuits.composition("k", basis="folded")
    with pytest.raises(Unsupported, match="a gate of each position and channel"):
        Circuits(_lm("qwen3_next")).composition("v", basis="folded")


@pytest.mark.parametrize(
    ("model_type", "writers", "missing"),
    [
        ("jamba", {"attention 1", "attention 3"}, {"mixer (Mamba) 0", "mixer (Mamba) 2"}),
        ("qwen3_next", {"attention 3"}, {f"mixer (gated DeltaNet) {n}" for n in range(3)}),
        ("nemotron_h", {"attention 2"}, {"mixer (Mamba-2) 0"}),
        ("deepseek_v3", {f"attention {n}" for n in range(4)}, set[str]()),
        ("gemma4_text", {f"attention {n}" for n in range(4)}, {f"{w} {n}" for w in "QKV" for n in (2, 3)}),
    ],
)
def test_the_stream_has_every_matrix_that_exists_and_names_the_rest(
    model_type: str, writers: set[str], missing: set[str]
) -> None:
    lm = _lm(model_type)
    found = virtual_weights(lm, "folded")
    assert {name for name in found.writers if name.startswith("attention")} == writers
    assert missing <= found.missing.keys() and all(found.missing.values())
    reads = {name.removesuffix(" (content)").removesuffix(" (rotary)") for name in found.readers}
    for layer in lm.attention_layers:
        assert all((f"{which} {layer}" in reads) != (f"{which} {layer}" in found.missing) for which in "QKV")


@pytest.mark.parametrize("model_type", ["jamba", "nemotron_h", "qwen3_next"])
def test_attention_on_text_is_that_of_the_layers_that_attend(model_type: str) -> None:
    lm = _lm(model_type)
    scores, lengths = scores_on_text(lm, TEXT, max_windows=1), head_output_lengths(lm, TEXT, max_windows=1)
    others = [n for n in range(lm.n_layers) if n not in lm.attention_layers]
    for tensor in (scores.induction, scores.previous_token, lengths):
        assert tensor[others].isnan().all() and tensor[list(lm.attention_layers)].isfinite().all()
    tokens = lm.encode(TEXT[0])[:, :64]
    kept: dict[int, torch.Tensor] = {}
    handles = [
        lm.structure.blocks[n].attention.module.register_forward_hook(
            lambda _m, _a, out, n=n: kept.__setitem__(n, out[1].detach())
        )
        for n in lm.attention_layers
    ]
    lm.hf.set_attn_implementation("eager")
    with torch.no_grad():
        lm.hf(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    for handle in handles:
        handle.remove()
    for layer, pattern in kept.items():
        previous = pattern[0].diagonal(-1, dim1=-2, dim2=-1).double().mean(-1)
        torch.testing.assert_close(scores.previous_token[layer], previous, rtol=1e-4, atol=1e-6)


def test_heads_that_erase_are_those_with_an_ov_circuit() -> None:
    gated, jamba = _lm("qwen3_next"), _lm("jamba")
    found = memory_management(gated, "folded", corpus=TEXT, verify=True)
    assert found.heads.isnan().all() and not found.erasing_heads and not found.memories
    assert "experts that a router chooses" in found.missing["memories of layer 3"]
    assert "a gate of each position" in found.missing["heads of layer 3"]
    found = memory_management(jamba, "raw", corpus=TEXT, verify=True)
    assert {e.layer for e in found.erasing_heads} == {1, 3} and found.heads[[0, 2]].isnan().all()
    W_O, W_V = (jamba.weights.W_O[1][2].double(), jamba.weights.W_V[1][1].double())
    values = torch.linalg.eigvals(W_V @ W_O)
    share = -values.real.clamp_max(0).sum() / values.abs().sum()
    torch.testing.assert_close(found.heads[1, 2], share, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "basis", "known", "why"),
    [
        ("jamba", "folded", ("copying", "partner", "k_composition", "matching"), "Heads of layer 1 have no partner"),
        ("qwen3_next", "folded", (), "Copying, and being a partner: not available in any layer, because a gate"),
        ("deepseek_v3", "folded", ("copying",), "K-composition and matching: not available in any layer, because"),
        ("gemma4_text", "folded", ("copying", "partner", "k_composition", "matching"), "K-composition and matching:"),
    ],
)
def test_evidence_of_induction_is_null_where_a_circuit_does_not_exist(
    model_type: str, basis: HeadBasis, known: tuple[str, ...], why: str
) -> None:
    lm = _lm(model_type)
    found = Circuits(lm).induction(basis, n_sequences=2, length=8)
    assert {e.layer for e in found} == {n for n in lm.attention_layers if n > 0}
    assert all(math.isfinite(e.induction) for e in found)
    for name in ("copying", "partner", "k_composition", "matching"):
        assert any(getattr(e, name) is not None for e in found) == (name in known)
    assert any(line.startswith(why) for line in induction_missing(lm, basis))


@torch.no_grad()
def test_what_one_part_writes_and_reads_is_listed_for_the_layers_with_a_matrix() -> None:
    lm = _lm("jamba")
    blocks, d = list(lm.hf.model.layers), 16
    readers = readers_of(lm, "L1H2", 10_000)
    assert {v.reader[:3] for v in readers} == {"L1M", "L2M", "L3H", "L3M"}
    assert readers.provenance.notes["missing"] == {"mixer (Mamba) 2": NO_MATRICES}
    W_O = blocks[1].self_attn.o_proj.weight[:, 2 * d : 3 * d].T.double()
    W_K = blocks[3].self_attn.k_proj.weight[:d].T.double()
    found = {(v.reader, v.input): v.ratio for v in readers}
    expected = float((W_O @ W_K).norm() / W_O.norm() / W_K.norm())
    assert found["L3H0", "K"] == pytest.approx(expected, rel=1e-5)
    key = blocks[2].feed_forward.gate_proj.weight[7].double()
    assert found["L2M7", "key"] == pytest.approx(float((W_O @ key).norm() / W_O.norm() / key.norm()), rel=1e-5)
    writers = writers_of(lm, "L3H1", 10_000)
    assert {v.writer[:3] for v in writers} == {"L0M", "L1H", "L1M", "L2M"}
    assert writers.provenance.notes["missing"].keys() == {"mixer (Mamba) 0", "mixer (Mamba) 2"}
    assert memory_connections(lm, 2, 7).missing.keys() == {"mixer (Mamba) 0", "mixer (Mamba) 2"}
    latent = readers_of(_lm("deepseek_v3"), "L1H0", 10_000, "folded")
    assert {v.input for v in latent if v.reader.startswith("L2H")} == {"Q", "V"}
    assert latent.provenance.notes["missing"].keys() == {"K 2", "K 3"}
    with pytest.raises(Unsupported, match="it uses the keys and values of another layer"):
        writers_of(_lm("gemma4_text"), "L3H0")


@pytest.mark.parametrize(
    ("model_type", "part", "absent"),
    [
        ("jamba", "L1H0", "mixer (Mamba) 2: it is neither attention nor an FFN"),
        ("qwen3_next", "L0M0", "mixer (gated DeltaNet) 1: it is neither attention nor an FFN"),
        ("gemma4_text", "L3H0", "writers of L3H0: it uses the keys and values of another layer"),
    ],
)
def test_the_command_of_virtual_weights_names_what_is_not_in_its_lists(
    model_type: str, part: str, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unembed.cli import option_groups
    from unembed.cli.commands import app

    lm = _lm(model_type)
    monkeypatch.setattr(option_groups.Opening, "open", lambda self, seed=0: lm)
    done = CliRunner().invoke(app, ["circuits", "virtual-weights", part, "--json"])
    assert done.exit_code == 0, done.output
    view = json.loads(done.stdout)
    assert view["tables"]["readers"]["rows"] and any(absent in line for line in view["text"])


@pytest.mark.parametrize("command", ["stream", "induction", "composition", "heads"])
@pytest.mark.parametrize("model_type", ["jamba", "nemotron_h", "deepseek_v3", "gemma4_text"])
def test_commands_run_whole_and_write_null(model_type: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from unembed.cli import option_groups
    from unembed.cli.commands import app

    lm = _lm(model_type)
    monkeypatch.setattr(option_groups.Opening, "open", lambda self, seed=0: lm)
    small = ["--sequences", "2", "--length", "6"] if command in ("induction", "heads") else []
    done = CliRunner().invoke(app, ["circuits", command, *small, "--json"])
    assert done.exit_code == 0, done.output
    view: dict[str, Any] = json.loads(done.stdout)
    absent = {"stream": "Not compared", "composition": "attention" if model_type == "jamba" else "not available"}
    if (model_type, command) == ("deepseek_v3", "stream"):  # everything is there: keys in two parts
        assert {"K 0 (content)", "K 0 (rotary)"} <= {row["reader"] for row in view["tables"]["overlap"]["rows"]}
    elif (model_type, command) != ("nemotron_h", "composition"):
        assert any(absent.get(command, "ayer") in line for line in view["text"])
    shown = CliRunner().invoke(app, ["circuits", command, *small])
    assert shown.exit_code == 0 and "nan" not in shown.output.split()


def test_the_stream_of_heads_without_a_circuit_of_their_own_shows_no_number_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unembed.cli import option_groups
    from unembed.cli.commands import app

    lm = _lm("jetmoe")
    monkeypatch.setattr(option_groups.Opening, "open", lambda self, seed=0: lm)
    text = json.loads(CliRunner().invoke(app, ["circuits", "stream", "--json"]).stdout)["text"]
    assert not any("nan" in re.findall(r"\w+", line) or "Negative share" in line for line in text)


def _advised(lm: LanguageModel, layer: int, retried: Callable[[HeadBasis], object]) -> dict[str, Callable[[], object]]:
    """What each piece of advice means, by its words; `retried` repeats the refused call in another basis."""
    tokens = torch.arange(3, 12)
    return {
        "attributions by component": lambda: lm.trace(tokens).attribution(7, by="component"),
        "by head": lambda: lm.trace(tokens).attribution(7, by="head"),
        "by source": lambda: lm.trace(tokens).attribution(7, by="source"),
        "patterns": lambda: lm.run(tokens[None], "pattern", layers=[layer]).at("pattern", layer),
        "OV circuits": lambda: Circuits(lm).ov(layer, 0),
        "attn_out": lambda: lm.run(tokens[None], "attn_out", layers=[layer]).at("attn_out", layer),
        "basis='raw'": lambda: retried("raw"),
        "scores on a prompt": lambda: Circuits(lm).score_terms(tokens, layer, 0),
        "part='content'": lambda: Circuits(lm).qk(layer, 0, basis="folded", part="content"),
        "scores_by_offset": lambda: Circuits(lm).scores_by_offset(layer, 0, [1]),
        "qk, which": lambda: Circuits(lm).qk(layer, 0, 1),
        "head_scores": lambda: Circuits(lm).head_scores(n_sequences=2, length=6),
    }


@pytest.mark.parametrize(
    ("model_type", "refused"),
    [
        ("jetmoe", {"composition", "copying", "matching", "ov", "qk", "offset", "positions", "terms", "readers", "z"}),
        ("inkling_text", {"composition", "copying", "matching", "ov", "qk", "terms", "readers", "z", "memories"}),
        ("mamba", {"composition", "copying", "matching", "induction", "scores", "text", "readers", "z", "memories"}),
        ("qwen3_next", {"composition", "copying", "ov", "positions"}),
        ("gemma4_text", {"ov", "qk", "offset", "positions", "terms"}),
        ("deepseek_v3", {"matching", "qk", "offset", "positions"}),
        ("axk2", {"composition", "copying", "matching", "ov", "qk", "offset", "positions", "terms"}),
        ("codegen", {"composition", "copying", "matching", "ov", "qk", "offset", "positions", "terms"}),
        ("diffllama", {"composition", "copying", "matching", "ov", "qk", "offset", "positions", "terms"}),
        ("dbrx", {"terms", "positions"}),
        ("ctrl", {"copying", "matching", "offset", "positions"}),
        ("smollm3", {"positions", "offset"}),
    ],
)
def test_the_advice_of_a_refusal_works_on_that_very_model(model_type: str, refused: set[str]) -> None:
    lm = _lm(model_type)
    circuits, tokens = Circuits(lm), torch.arange(3, 12)
    layer = max(lm.attention_layers, default=lm.n_layers - 1)
    questions: dict[str, Callable[[HeadBasis], object]] = {
        "composition": lambda basis: circuits.compositions(basis),
        "copying": lambda basis: circuits.copying(basis),
        "matching": lambda basis: circuits.matching(basis),
        "induction": lambda basis: circuits.induction(basis, n_sequences=2, length=6),
        "scores": lambda _: circuits.head_scores(n_sequences=2, length=6),
        "text": lambda _: scores_on_text(lm, TEXT, max_windows=1),
        "ov": lambda basis: circuits.ov(layer, 0, basis),
        "qk": lambda basis: circuits.qk(layer, 0, basis=basis),
        "offset": lambda basis: circuits.scores_by_offset(layer, 0, [1], basis),
        "positions": lambda basis: circuits.position_scores(layer, 0, basis),
        "terms": lambda _: circuits.score_terms(tokens, layer, 0),
        "readers": lambda basis: readers_of(lm, "L0H0", 3, basis),
        "z": lambda _: lm.run(tokens[None], "z"),
        "memories": lambda _: lm.values.top_tokens(0, 3),
    }
    found = set()
    for name, question in questions.items():
        try:
            question("folded")
        except (Unsupported, PointMissing) as error:
            found.add(name)
            means = [do for words, do in _advised(lm, layer, question).items() if words in error.instead]
            assert means, f"{name}: {error}"
            for do in means:
                do()
    assert refused <= found


@pytest.mark.parametrize("model_type", ["jetmoe", "inkling_text"])
def test_heads_with_one_joint_output_attend_on_text(model_type: str) -> None:
    lm = _lm(model_type)
    tokens = lm.encode(TEXT[0])[:, :64]
    found = scores_on_text(lm, [TEXT[0]], window=64, max_windows=1)
    for layer in range(lm.n_layers):
        pattern = lm.run(tokens, "pattern", layers=[layer]).at("pattern", layer)[0]
        previous = pattern.diagonal(-1, dim1=-2, dim2=-1).double().mean(-1)
        torch.testing.assert_close(found.previous_token[layer], previous, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_type", "copies", "matches"),
    [("qwen3_next", False, True), ("deepseek_v3", True, False), ("gemma4_text", True, True), ("lfm2", True, True)],
)
def test_the_scores_of_heads_are_null_where_they_do_not_exist(
    model_type: str, copies: bool, matches: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unembed.cli import option_groups
    from unembed.cli.commands import app

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type)).eval()
    with torch.no_grad():  # as they are initialised, short convolutions write less than bfloat16 resolves
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    lm = load(model.to(dtype), tokenizer=lettered("gpt2").tokenizer)
    monkeypatch.setattr(option_groups.Opening, "open", lambda self, seed=0: lm)
    done = CliRunner().invoke(app, ["circuits", "heads", "--sequences", "2", "--length", "6", "--json"])
    assert done.exit_code == 0, done.output
    tables = json.loads(done.stdout)["tables"]
    assert sorted((row["layer"], row["head"]) for row in tables["heads"]["rows"]) == [
        (n, head) for n in lm.attention_layers for head in range(4)
    ]
    assert all(0 < row["previous_token"] < 1 for row in tables["heads"]["rows"])
    missing = missing_circuits(lm, "folded")
    for row in tables["heads_by_weights"]["rows"]:
        assert (row["copying_score"] is not None) == (row["layer"] not in missing.ov)
        assert (row["matching_score"] is not None) == (row["layer"] not in missing.qk)
        assert row["copying_score"] != 0 and row["matching_score"] != 0
    assert (len(missing.ov) < len(lm.attention_layers)) == copies
    assert (len(missing.qk) < len(lm.attention_layers)) == matches
    words = {"qwen3_next": "4 attention heads, 4 gated DeltaNet heads", "lfm2": "4 attention heads"}
    assert lm.heads_a_layer == words.get(model_type, "4 heads")


@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "rwkv", "xlstm"])
def test_a_head_of_a_model_without_attention_is_refused_for_the_whole_model(model_type: str) -> None:
    circuits = Circuits(_lm(model_type))
    for question in (circuits.ov, circuits.qk, circuits.head, circuits.position_scores, circuits.skip_trigrams):
        with pytest.raises(
            Unsupported, match=r"^circuits of .*: its layers have .* instead of attention.*by component\.$"
        ):
            question(0, 0)

"""Path patching equals freezing everything else by hand, and shows the previous-token head acting through keys."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tests.conftest import tiny
from tests.families import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM

import unembed
from unembed.causality.patching import patch
from unembed.errors import InvalidInput, OutOfRange, PointMissing, Unsupported
from unembed.language_model import LanguageModel

CLEAN = torch.tensor([5, 17, 23, 42, 11, 8])
CORRUPTED = torch.tensor([5, 60, 23, 42, 31, 8])
DEEP = (
    "gpt2-relu",
    "llama",
    "gemma2",
    "gptj",
    "granite",
    "qwen3",
    "olmo2",
    "gpt_bigcode",
    "gpt_neox",
    "attention-only",
)


def metric(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


def deep(name: str) -> LanguageModel:
    """A family's model with three layers, in float64."""
    model_type, arguments = FAMILIES[name]
    key = next(k for k in ("num_hidden_layers", "n_layer") if k in arguments)
    changed = {**arguments, key: 3}
    if "layer_types" in changed:
        changed["layer_types"] = ["sliding_attention", "full_attention", "full_attention"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **changed)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.3 if parameter.dim() == 1 else 0.05) * torch.randn_like(parameter))
    return unembed.load(model)


class ByHand:
    """Path patching by plain hooks: every later component is held at its own output, pass by pass."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.blocks = lm.structure.blocks
        self.own = {id(m): self.outputs(m, CORRUPTED) for b in self.blocks for m in self.components(b)}

    @staticmethod
    def components(block: Any) -> list[Any]:
        return [block.mixer.output, *([] if block.feed_forward is None else [block.feed_forward.output])]

    def outputs(self, module: Any, tokens: torch.Tensor, *hooks: Any, given: bool = False) -> torch.Tensor:
        """What a module returns (or is given) in a run under some hooks."""
        found: list[torch.Tensor] = []

        def keep(_m: Any, args: Any, out: Any) -> None:
            t = args[0] if given else out
            found.append((t if isinstance(t, torch.Tensor) else t[0]).clone())

        with ExitStack() as stack:
            stack.callback(module.register_forward_hook(keep).remove)
            self.run(tokens, stack, *hooks)
        return found[0]

    def run(self, tokens: torch.Tensor, stack: ExitStack, *hooks: Any) -> torch.Tensor:
        for module, is_input, change in hooks:
            if is_input:
                hook = module.register_forward_pre_hook(lambda _m, args, c=change: (c(args[0]), *args[1:]))
            else:
                hook = module.register_forward_hook(
                    lambda _m, _a, out, c=change: c(out) if isinstance(out, torch.Tensor) else (c(out[0]), *out[1:])
                )
            stack.callback(hook.remove)
        with torch.no_grad():
            return self.lm.hf(tokens[None], use_cache=False).logits[:, -1]

    def frozen(self, sender: Any, upto: int) -> list[Any]:
        """Hooks that replace a head or memory and hold every other component below a layer (the sender's FFN too)."""
        point, layer, index = sender
        block, lm = self.blocks[layer], self.lm
        if point == "z":
            module, width = block.attention.out_proj, lm.d_head
        else:
            module, width = block.feed_forward.down_proj, 1
        clean = self.outputs(module, CLEAN, given=True)
        columns = slice(index * width, (index + 1) * width)

        def replaced(t: torch.Tensor) -> torch.Tensor:
            t = t.clone()
            t[..., columns] = clean[..., columns]
            return t

        hooks: list[Any] = [(module, True, replaced)]
        writer = block.mixer.output if point == "z" else block.feed_forward.output
        for other in [m for b in self.blocks[layer:upto] for m in self.components(b) if m is not writer]:
            if other is not writer:
                hooks.append((other, False, lambda _t, o=other: self.own[id(o)].clone()))
        return hooks

    def through(self, sender: Any, layer: int, head: int, part: str) -> torch.Tensor:
        """The metric when a head's queries, keys or values alone see the sender replaced."""
        site = self.blocks[layer].attention
        module = getattr(site.layout, part)
        changed = self.outputs(module, CORRUPTED, *self.frozen(sender, layer))
        columns = site.split_heads(torch.arange(changed.shape[-1]).double(), part).flatten().long()

        def taken_over(t: torch.Tensor) -> torch.Tensor:
            t = t.clone()
            t[..., columns] = changed[..., columns]
            return t

        z = self.outputs(site.out_proj, CORRUPTED, (module, False, taken_over), given=True)
        d = self.lm.d_head

        def head_only(t: torch.Tensor) -> torch.Tensor:
            t = t.clone()
            t[..., head * d : (head + 1) * d] = z[..., head * d : (head + 1) * d]
            return t

        with ExitStack() as stack:
            return metric(self.run(CORRUPTED, stack, (site.out_proj, True, head_only)))

    def component(self, sender: Any, module: Any, layer: int) -> torch.Tensor:
        """The metric when one component alone sees the sender replaced."""
        own = [m for m in self.components(self.blocks[layer]) if m is not module]
        frozen = [(m, False, lambda _t, o=m: self.own[id(o)].clone()) for m in own]
        new = self.outputs(module, CORRUPTED, *self.frozen(sender, layer), *frozen)
        with ExitStack() as stack:
            return metric(self.run(CORRUPTED, stack, (module, False, lambda _t: new)))

    def logits(self, sender: Any) -> torch.Tensor:
        with ExitStack() as stack:
            return metric(self.run(CORRUPTED, stack, *self.frozen(sender, len(self.blocks))))


@pytest.mark.parametrize("name", DEEP)
def test_paths_equal_freezing_everything_else_by_hand(name: str) -> None:
    lm = deep(name)
    by_hand = ByHand(lm)
    has_memories = lm.structure.blocks[0].feed_forward is not None
    senders = {"L0H1": ("z", 0, 1), "L1H2": ("z", 1, 2)} | ({"L1M7": ("coefficients", 1, 7)} if has_memories else {})
    receivers = ["L2H1", "L2H3", "attn_out 2", *(["mlp_out 2"] if has_memories else []), "logits"]
    found = patch(lm, CLEAN, CORRUPTED, list(senders), metric, through=receivers)
    assert found.receivers[:3] == ("L2H1.q", "L2H1.k", "L2H1.v")
    for i, sender in enumerate(senders.values()):
        for j, receiver in enumerate(found.receivers):
            if receiver == "logits":
                expected = by_hand.logits(sender)
            elif receiver[0] == "L":
                expected = by_hand.through(sender, 2, int(receiver[3]), receiver[-1])
            else:
                components = ByHand.components(lm.structure.blocks[2])
                module = components[("attn_out 2", "mlp_out 2").index(receiver)]
                expected = by_hand.component(sender, module, 2)
            assert float(found.values[i, j]) == pytest.approx(float(expected), rel=1e-9, abs=1e-9), receiver
            effect = abs(float(found.values[i, j]) - found.corrupted)
            assert effect > 1e-12, f"{found.senders[i]} to {receiver} has no effect to compare"


def test_the_previous_token_head_acts_on_the_induction_heads_through_their_keys() -> None:
    lm = unembed.load("attn-2l")
    circuits = unembed.circuits(lm)
    previous = (0, int(circuits.head_scores(seed=0).previous_token[0].argmax()))
    heads = (circuits.head_scores(seed=0).induction[1] > 0.2).nonzero().flatten().tolist()
    assert heads
    text = "The concert was led by{} Gordon, and the songs were written in the summer. A year later the band met{}"
    sender, names = f"L0H{previous[1]}", [f"L1H{head}" for head in heads]
    for first, other in ((" Charles", " Thomas"), (" Henry", " Walter")):
        found = lm.patch(
            text.format(first, first),
            text.format(other, first),
            "heads",
            through="heads",
            metric=unembed.logit_difference(" Gordon"),
            direction="noising",
        )
        i = found.senders.index(sender)
        at = {part: [found.receivers.index(f"{name}.{part}") for name in names] for part in "qkv"}
        row = found.recovered[i]
        assert row[at["k"]].sum() > 0.9 and row[at["q"]].abs().max() < 0.01 and row[at["v"]].abs().max() < 0.2
        best = found.to_table()[0]
        assert best["sender"] == sender and best["receiver"] in {f"{name}.k" for name in names}
        head = int(best["receiver"].removeprefix("L1H").removesuffix(".k"))
        assert best["composition"] == pytest.approx(float(circuits.composition("k")[*previous, 1, head]), rel=1e-6)
        assert best["composition"] > found.composition[i, at["q"] + at["v"]].max()


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gptj", "granite"])
def test_the_table_over_all_heads_has_an_edge_for_each_pair_in_order(name: str) -> None:
    lm = tiny(name)
    found = patch(lm, CLEAN, CORRUPTED, "heads", metric, through="heads")
    n = lm.n_heads
    assert found.values.shape == (2 * n, 2 * n * 3) == found.composition.shape
    assert len(found.to_table()) == n * n * 3  # layer 0 to layer 1
    assert bool(found.values[:n, : 3 * n].isnan().all()) and bool(found.values[n:].isnan().all())
    one = patch(lm, CLEAN, CORRUPTED, "L0H2", metric, through="L1H3.k", batch=1)
    j = found.receivers.index("L1H3.k")
    assert float(one.values[0, 0]) == pytest.approx(float(found.values[2, j]), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "gptj", "gemma2", "olmo2", "mixtral"])
def test_what_a_whole_layer_writes_is_its_direct_path_to_the_logits(name: str) -> None:
    lm = tiny(name)
    last = lm.n_layers - 1
    writers, readers = [f"layer {last}", "attn_out 0"], ["logits", f"layer {last}"]
    direct = patch(lm, CLEAN, CORRUPTED, writers, metric, through=readers)
    parts = lm.run(CLEAN, ("attn_out", "mlp_out")), lm.run(CORRUPTED, ("attn_out", "mlp_out", "resid_post"))
    added = sum(parts[0].at(p, last)[0] - parts[1].at(p, last)[0] for p in ("attn_out", "mlp_out"))
    final = parts[1].at("resid_post", last)[0] + added
    norm = lm.structure.final_norm
    assert norm is not None
    with torch.no_grad():
        logits = lm.structure.capped(lm.structure.head(norm.module(final[None])))[:, -1]
    assert float(direct.values[0, 0]) == pytest.approx(float(metric(logits)), rel=1e-4, abs=1e-5)
    assert bool(direct.values[0, 1].isnan()) and bool(direct.values[1].isfinite().all())


def test_a_sender_that_does_not_differ_has_no_effect() -> None:
    lm = tiny("gpt2-relu")
    found = patch(lm, CLEAN, CORRUPTED, "L0H1", metric, through=["L1H0", "logits"], positions=[0])
    assert found.values[0].tolist() == [found.corrupted] * 4  # the first tokens are equal


def test_half_precision_agrees_with_float32() -> None:
    half, full = tiny("llama", torch.bfloat16), unembed.load(_same_weights())
    a, b = (patch(lm, CLEAN, CORRUPTED, "heads", metric, through="L1H0") for lm in (half, full))
    known = a.values.isfinite()
    assert float((a.values - b.values)[known].abs().max()) < 0.1 * max(1.0, abs(b.clean - b.corrupted))


def _same_weights() -> Any:
    from tests.families import build

    return build("llama", torch.bfloat16).float()


@pytest.mark.parametrize(
    ("senders", "receivers", "error", "words"),
    [
        ("L1H0", "L0H1.q", InvalidInput, "no receiver reads the stream after"),
        ("L0H0", "L0H1.q", InvalidInput, "no receiver reads the stream after"),
        ("L0H9", "logits", OutOfRange, "head 9"),
        ("head 3", "logits", InvalidInput, "it is not the name of a writer"),
        ("L0H1", "L1H1.z", InvalidInput, "it is not the name of a reader"),
        ([], "logits", InvalidInput, "not a list of names"),
    ],
)
def test_bad_paths_are_refused_in_one_line(senders: Any, receivers: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        patch(tiny("gpt2-relu"), CLEAN, CORRUPTED, senders, metric, through=receivers)


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2"])
def test_a_memory_reaches_the_logits_by_its_value(name: str) -> None:
    lm = tiny(name)
    last = lm.n_layers - 1
    runs = [lm.run(ids, ("coefficients", "resid_post", "mlp_out")) for ids in (CLEAN, CORRUPTED)]
    change = runs[0].at("coefficients", last)[0, -1] - runs[1].at("coefficients", last)[0, -1]
    index = int(change.abs().argmax())
    found = patch(lm, CLEAN, CORRUPTED, f"L{last}M{index}", metric, through="logits")
    if name == "gemma2":  # a norm stands between the memory and the stream
        edit = unembed.add_to_coefficient(last, index, float(change[index]), positions=[5])
        expected = lm.run(CORRUPTED, edits=[edit]).logits[:, -1]
    else:
        final = runs[1].at("resid_post", last)[0] + 0.0
        final[-1] += change[index] * lm.weights.values(last, torch.tensor([index]))[0]
        norm = lm.structure.final_norm
        assert norm is not None
        with torch.no_grad():
            expected = lm.structure.capped(lm.structure.head(norm.module(final[None])))[:, -1]
    assert abs(float(found.values[0, 0]) - found.corrupted) > 1e-4
    assert float(found.values[0, 0]) == pytest.approx(float(metric(expected)), rel=1e-4, abs=1e-5)


def test_what_a_model_lacks_is_refused_by_name() -> None:
    with pytest.raises(PointMissing, match="mlp_out"):
        patch(tiny("attention-only"), CLEAN, CORRUPTED, "L0H0", metric, through="mlp_out 1")
    edits = [unembed.replace_stream(0, [0.0] * 48)]
    with pytest.raises(Unsupported, match="cuts every path"):
        patch(tiny("llama"), CLEAN, CORRUPTED, "L0H0", metric, through="logits", edits=edits)

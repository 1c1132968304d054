"""A device written in Python: its tensors hold processor tensors, and an operation on tensors of two devices fails.

`python -m tests.models.whole.second_device NAME...` opens a tiny model of each name there, runs the analyses, and
compares each result with the same model's on the processor: all analyses for a family of the tests, those that depend
on the kind of the model's parts for a model type of transformers. It changes torch for the whole process, hence a
process of its own.
All is compared once more with half of the layers on each device, as a `device_map` places them; what replaces
activations also with layers in main memory, moved to the second device for each call.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import unembed
from tests.cli.conftest import save_model
from tests.families import FAMILIES
from tests.models.decoder_classes import tiny_model
from unembed.attention.weights.rotation import rotate_stream
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel
from unembed.logit_attribution import attribution, kinds_of
from unembed.names import PATCH_POINTS, By
from unembed.stream.capture_points import has_point

SECOND = "second"
SHARED = ("zamba", "zamba2")
"""Model types whose layers share a module, so that no map places them on two devices."""
_aten = torch.ops.aten
_MAY_MIX = {
    *(_aten.copy_.default, _aten._to_copy.default, _aten.index.Tensor),
    *(_aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default),
}
"""Operations that take an index on, or copy from, another device, as on a GPU."""
_plain_tensor = torch.tensor


class _Module:
    """What torch expects of a backend's module."""

    is_available = is_initialized = staticmethod(lambda: True)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)


class Second(Tensor):
    """A tensor on the second device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> Any:
        if isinstance(inner, Tensor) and inner.is_meta:  # accelerate makes parameters of the class of the old one
            return nn.Parameter(inner, requires_grad)
        inner = inner.inner if isinstance(inner, Second) else inner.detach()
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(SECOND, 0),
            requires_grad=requires_grad,
        )
        made.inner = inner
        return made

    def __init__(self, inner: Tensor, requires_grad: bool = False) -> None: ...

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor on the second device has no NumPy array: use Tensor.cpu()")
        return self.inner.numpy(force=True)

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor.__getitem__(self, _with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        Tensor.__setitem__(self, _with_tensors(index), value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class _OnSecond(TorchDispatchMode):
    """Sees the operations that have no tensor to dispatch on, such as `torch.zeros(3, device="second")`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # nothing here is compiled, and the check costs a tenth of the time
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def _with_tensors(index: Any) -> Any:
    """An index whose lists are tensors: torch moves lists to the device below where Python can intercept."""
    if isinstance(index, tuple):
        return tuple(_with_tensors(part) for part in index)
    return _plain_tensor(index) if isinstance(index, list) else index


def _is_second(value: Any) -> bool:
    return isinstance(value, (torch.device, str)) and torch.device(value).type == SECOND


class _Arguments:
    """The arguments of an operation as the processor takes them, and what they say of the second device."""

    def __init__(self, args: Any, kwargs: dict[str, Any]) -> None:
        self.second: list[Second] = []
        self.has_plain = self.names_second = False
        self.args = tuple(self._on_processor(value) for value in args)
        self.kwargs = {name: self._on_processor(value) for name, value in kwargs.items()}

    def _on_processor(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if isinstance(value, Second):
                self.second.append(value)
                return value.inner
            self.has_plain = self.has_plain or value.dim() > 0
        elif isinstance(value, (tuple, list)):
            parts = [self._on_processor(part) for part in value]
            return parts if isinstance(value, list) else type(value)(parts)
        elif isinstance(value, torch.device) and value.type == SECOND:
            self.names_second = True
            return torch.device("cpu")
        return value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A result with each of its tensors changed; one with named fields keeps its type."""
    if isinstance(value, (tuple, list)):
        parts = [_mapped(change, part) for part in value]
        return parts if isinstance(value, list) else type(value)(parts)
    return change(value)


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = _Arguments(args, kwargs)
    if not given.second and not given.names_second:
        return func(*args, **kwargs)
    if given.second and given.has_plain and func not in _MAY_MIX:
        raise RuntimeError(f"{func} got tensors of the second device and of the processor")
    if func is _aten.histc.default:  # as on a GPU, integers can be counted
        given.args = (given.args[0].float(), *given.args[1:])
    out = func(*given.args, **given.kwargs)
    if func is _aten.copy_.default:
        return args[0]
    if torch.Tag.inplace_view in func.tags:  # the shape of the tensor around it changes, too
        with no_dispatch():
            return func(*args, **kwargs)
    if not (_is_second(kwargs["device"]) if kwargs.get("device") is not None else given.second):
        return out
    by_inner = {id(tensor.inner): tensor for tensor in given.second}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Second):
            return value
        return by_inner[id(value)] if id(value) in by_inner else Second(value)

    return _mapped(wrapped, out)


def _new_tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    made = _plain_tensor(data, dtype=dtype, requires_grad=requires_grad)
    return Second(made) if _is_second(device) else made


def moved(model: nn.Module) -> nn.Module:
    """The model with its parameters, buffers and other tensors on the second device; tied ones stay tied."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = memo.setdefault(id(parameter), nn.Parameter(Second(parameter.data)))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = memo.setdefault(id(buffer), Second(buffer))
    return model


def spread(model: nn.Module, like: LanguageModel) -> nn.Module:
    """The model on both devices, as a `device_map` places it: the embedding and half of the layers on the second one.

    Args:
        model: to be changed in place.
        like: the same model, opened.
    """
    later = [block.path for block in like.structure.blocks[like.n_layers // 2 :]]
    head = like.hf.get_output_embeddings()
    tied = head if head.weight is like.hf.get_input_embeddings().weight else None
    places: dict[str, str] = {}

    def place(path: str, module: nn.Module, original: nn.Module) -> None:
        """Modules in their order; from the first of the later layers on, all are on the processor."""
        on_processor = any(one in places for one in later) and original is not tied
        if path in later or on_processor or not any(one.startswith(path) for one in later):
            places[path] = "cpu" if path in later or on_processor else f"{SECOND}:0"
            return
        for name, own in module.named_parameters(recurse=False):  # ZAYA's gain on what the embedding returns
            module._parameters[name] = nn.Parameter(Second(own.data))
            places[f"{path}.{name}"] = f"{SECOND}:0"
        for name, child in module.named_children():
            place(f"{path}.{name}".lstrip("."), child, original.get_submodule(name))

    place("", model, like.hf)
    return accelerate.dispatch_model(
        model, device_map=places, main_device="cpu", skip_keys=like.hf._skip_keys_device_placement
    )


def analyses(lm: LanguageModel, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and results, as tensors or numbers."""
    prompt = lm.encode("The first month of the year is")
    other = prompt.clone()
    other[0, 2] = 11
    edits = [unembed.set_coefficient(1, 3, to=2.0), unembed.scale_head(0, 1, 0.0)]
    trace = lm.trace(prompt)
    circuits = unembed.circuits(lm)
    yield "logits", lambda: lm.run(prompt, capture=("coefficients", "pattern", "q", "z")).logits
    yield "padded batch", lambda: lm.run(["The year", "The first month is"]).logits
    yield "readings", lambda: trace.readings(basis="frozen").probabilities
    yield "events", lambda: [str(row) for row in trace.events()]
    for by in ("component", "head", "source", "memory"):
        yield by, lambda by=by: [row.contribution for row in trace.attribution(11, against=23, by=by).rows]
    yield "effects", lambda: [row.total or 0.0 for row in trace.attribution(11, by="head").with_effects(top=4).rows]
    yield "edits", lambda: lm.run(prompt, edits=edits).logits
    yield "generation", lambda: lm.generate("The first month", edits=edits, max_new_tokens=4)
    yield "value readings", lambda: unembed.value_readings(lm, 5).scores
    yield "clusters", lambda: [int(label) for label in unembed.cluster_values(lm, n_clusters=5).labels]
    yield "OV", lambda: circuits.ov_full(1, 2).eigenvalues().abs()
    yield "QK", lambda: circuits.qk_full(1, 2, offset=3).top(4).values
    yield "composition", lambda: circuits.composition("k", baseline=True)
    yield "head scores", lambda: circuits.head_scores(n_sequences=4, length=8)["induction"]
    yield "expansion", lambda: circuits.expand(prompt, order=2).error
    text = folder / "text.txt"
    text.write_text("The first month of the year is January .\n" * 20)
    index = unembed.Index.build(lm, str(text), str(folder / f"index-{lm.device.type}"), top=5)
    yield "triggers", lambda: list(index.triggers(1, 3).rows())
    yield "similar", lambda: index.similar(1, 3)["cosine"]
    yield "gallery", lambda: [(row.layer, row.index) for row in index.memories(top=5, layers=[0, 1]).rows]
    yield "early exit", lambda: unembed.early_exit.fit(lm, str(text), method="margin").thresholds.tolist()


def kind_analyses(lm: LanguageModel) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Those that depend on the kind of the model's parts."""
    prompt = torch.arange(5, 13)[None]
    names = ("resid_post", "attn_out", "z", "coefficients", "gate_weights")
    first, last = (
        {p: n for p in names for n in numbers if has_point(lm, p, n)}
        for numbers in (range(lm.n_layers)[::-1], range(lm.n_layers))
    )
    for point, layer in first.items():
        yield point, lambda point=point, layer=layer: lm.run(prompt, capture=point).at(point, layer)
    for by in kinds_of(lm):
        yield by, lambda by=by: attribution(lm, prompt, 11, by=by, against=23).contribution
    yield "readings", lambda: lm.trace(prompt).readings().probabilities
    edits = [unembed.scale_attention(at["attn_out"], 0.5) for at in (first, last)]
    if "z" in first:
        edits.append(unembed.scale_head(last["z"], 1, 0.0))
    if "coefficients" in first:
        yield "value readings", lambda: unembed.value_readings(lm, 5).scores
        edits += [unembed.set_coefficient(at["coefficients"], 3, to=2.0) for at in (first, last)]
    steer = torch.linspace(-1, 1, lm.d_model).tolist()
    edits += [] if lm.structure.streams else [unembed.add_vector(n, steer) for n in (0, lm.n_layers - 1)]
    yield "edits", lambda: lm.run(prompt, edits=edits).logits
    yield "hooks", lambda: lm.run(prompt, hooks={"attn_out": lambda t, _layer: 0.5 * t}).logits


def causal_analyses(lm: LanguageModel) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The same of what replaces activations, takes gradients, or both."""
    prompt = lm.encode("The first month of the year is")
    other = prompt.clone()
    other[0, 2] = 11
    edits = [unembed.set_coefficient(1, 3, to=2.0), unembed.scale_head(0, 1, 0.5)]
    metric = unembed.logit_difference(11, 23)
    texts = ["The first month of the year is January .", "The year is old .", "She looked at the garden in the month ."]
    pairs = [prompt[0], prompt[0, :4]], [other[0], other[0, :4]]
    trace = lm.trace(prompt)
    for points in PATCH_POINTS:
        yield f"patching {points}", lambda points=points: lm.patch(prompt, other, points, metric, edits=edits).values
    yield "noise", lambda: lm.patch(prompt, unembed.GaussianNoise((2,), seed=1), "resid_pre", metric).values
    yield "patching pairs", lambda: torch.cat([one.values for one in lm.patch(*pairs, "z", metric).each])
    yield "paths", lambda: lm.patch(prompt, other, "L0H1", metric, through=["L1H0", "mlp_out 1", "logits"]).values
    chosen: dict[str, Any] = {"heads": "all", "memories": [(0, 3), [(1, 4), (1, 5)]], "metric": metric}
    yield "ablation", lambda: lm.ablate(prompt, layers="all", edits=edits, **chosen).values
    yield "ablation to the mean", lambda: lm.ablate(prompt, to="mean", corpus=texts, **chosen).values
    yield "ablation to other prompts", lambda: lm.ablate(prompt, to=[texts[2]], **chosen).values
    yield "ablation over prompts", lambda: torch.cat([one.values for one in lm.ablate(texts, **chosen).each])
    for to in ("zero", "resample"):
        yield (
            f"ablation over a corpus to {to}",
            lambda to=to: lm.ablate(unembed.open_corpus(texts), layers="all", to=to, n_tokens=100).changes,
        )
    kinds: tuple[By, ...] = ("component", "head", "memory")
    for by in kinds:
        effects = lambda by=by: trace.attribution(11, by=by).with_effects(top=4)  # noqa: E731
        yield f"effects by {by}", lambda effects=effects: [row.total or 0.0 for row in effects().rows]
    for words, corrupted in (("to zero", None), ("to another run", other)):
        screen = cache(partial(unembed.attribution_patching, lm, prompt, metric, corrupted=corrupted, top=4))
        yield f"screen of heads {words}", lambda screen=screen: screen().heads
        yield f"screen of memories {words}", lambda screen=screen: screen().memories
        yield f"exact effects {words}", lambda screen=screen: list(screen().exact)


def compare(lm: LanguageModel, expected: dict[str, Any], found: Iterator[tuple[str, Callable[[], Any]]]) -> None:
    """Raises where a result on the second device is not that of the processor."""
    assert lm.device.type == SECOND
    for name, result in found:
        value = result()
        if isinstance(value, Tensor):
            torch.testing.assert_close(
                value.cpu(), expected[name].cpu(), rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
            )
        elif isinstance(value, list) and value and isinstance(value[0], float):
            torch.testing.assert_close(_plain_tensor(value), _plain_tensor(expected[name]), rtol=1e-4, atol=1e-5)
        elif isinstance(value, float):
            assert abs(value - expected[name]) < 1e-4, name
        else:
            assert type(value) is type(expected[name]), name


def compare_kind(model_type: str) -> None:
    """Compare the analyses of each kind's parts; end with the first that fails or differs."""
    near = unembed.load(tiny_model(model_type))
    expected = {name: result() for name, result in kind_analyses(near)}
    model = tiny_model(model_type)
    torch.tensor = _new_tensor
    with _OnSecond():
        far = unembed.load(moved(model))
        compare(far, expected, kind_analyses(far))
    torch.tensor = _plain_tensor
    both = tiny_model(model_type)
    torch.tensor = _new_tensor
    with _OnSecond():
        if model_type not in SHARED:
            apart = unembed.load(spread(both, near))
            assert {p.device.type for p in apart.hf.parameters()} == {"cpu", SECOND}
            compare(apart, expected, kind_analyses(apart))
    torch.tensor = _plain_tensor
    print(f"{model_type}: {len(expected)} analyses")


def compare_family(family: str) -> None:
    """Compare every analysis; end with the first that fails or differs."""
    folder = Path(tempfile.mkdtemp())
    near = unembed.load(save_model(folder / "model", family))
    copy, offloaded, both = (type(near.hf).from_pretrained(folder / "model").eval() for _ in range(3))
    expected = {name: result() for name, result in analyses(near, folder)}
    causal = {name: result() for name, result in causal_analyses(near)}
    torch.tensor = _new_tensor
    with _OnSecond():
        far = unembed.load(moved(copy), tokenizer=near.tokenizer)
        compare(far, expected, analyses(far, folder))
        compare(far, causal, causal_analyses(far))
        accelerate.cpu_offload(offloaded, torch.device(SECOND, 0), offload_buffers=True)
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        moving = unembed.load(offloaded, tokenizer=near.tokenizer)
        compare(moving, causal, causal_analyses(moving))
        apart = unembed.load(spread(both, near), tokenizer=near.tokenizer)
        compare(apart, expected, analyses(apart, Path(tempfile.mkdtemp())))
        compare(apart, causal, causal_analyses(apart))
        if family == "gpt2":  # others cannot be rotated anyway
            with pytest.raises(InvalidInput, match=r"on several devices, and .* is a copy"):
                rotate_stream(apart)
    torch.tensor = _plain_tensor
    print(f"{family}: {len(expected) + len(causal)} analyses")


if __name__ == "__main__":
    # Before the first backward pass, which makes a queue for each device that there is.
    _setup_privateuseone_for_python_backend(SECOND, _Module())
    for name in sys.argv[1:]:
        (compare_family if name in FAMILIES else compare_kind)(name)

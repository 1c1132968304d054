"""A device written in Python: its tensors hold processor tensors, and an operation on tensors of two devices fails.

`python -m tests.models.whole.second_device FAMILY` opens a tiny model there, runs the analyses, and compares each
result with the same model's on the processor. It changes torch for the whole process, hence a process of its own.
Gradients are left out: torch's autograd engine has no queue for such a device.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import unembed
from tests.cli.conftest import save_model
from unembed.language_model import LanguageModel

SECOND = "second"
_aten = torch.ops.aten
_MAY_MIX = {_aten.copy_.default, _aten._to_copy.default, _aten.index.Tensor, _aten.index_put_.default}
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
    def __new__(cls, inner: Tensor) -> Second:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(SECOND, 0),
        )
        made.inner = inner
        return made

    def __init__(self, inner: Tensor) -> None: ...

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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def _with_tensors(index: Any) -> Any:
    """An index whose lists are tensors: torch moves lists to the device below where Python can intercept."""
    if isinstance(index, tuple):
        return tuple(_with_tensors(part) for part in index)
    return _plain_tensor(index) if isinstance(index, list) else index


def _is_second(value: Any) -> bool:
    return isinstance(value, (torch.device, str)) and torch.device(value).type == SECOND


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    second = [tensor for tensor in tensors if isinstance(tensor, Second)]
    if not second and not any(isinstance(leaf, torch.device) and _is_second(leaf) for leaf in leaves):
        return func(*args, **kwargs)
    if second and func not in _MAY_MIX and any(t.dim() > 0 and not isinstance(t, Second) for t in tensors):
        raise RuntimeError(f"{func} got tensors of the second device and of the processor")

    def on_processor(value: Any) -> Any:
        if isinstance(value, Second):
            return value.inner
        return torch.device("cpu") if isinstance(value, torch.device) and _is_second(value) else value

    arguments, named = tree_map(on_processor, args), tree_map(on_processor, kwargs)
    if func is _aten.histc.default:  # as on a GPU, integers can be counted
        arguments = (arguments[0].float(), *arguments[1:])
    out = func(*arguments, **named)
    stays = _is_second(kwargs["device"]) if kwargs.get("device") is not None else bool(second)
    if func is _aten.copy_.default:
        return args[0]
    by_inner = {id(tensor.inner): tensor for tensor in second}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Second) or not stays:
            return value
        return by_inner[id(value)] if id(value) in by_inner else Second(value)

    return tree_map(wrapped, out)


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


def analyses(lm: LanguageModel, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and results, as tensors or numbers."""
    prompt = lm.encode("The first month of the year is")
    other = prompt.clone()
    other[0, 2] = 11
    edits = [unembed.set_coefficient(1, 3, to=2.0), unembed.scale_head(0, 1, 0.0)]
    metric = unembed.logit_difference(11, 23)
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
    for points in ("resid_pre", "z", "coefficients"):
        yield f"patching {points}", lambda points=points: lm.patch(prompt, other, points=points, metric=metric).values
    yield "ablation", lambda: lm.ablate(prompt, heads="all", metric=metric).values
    text = folder / "text.txt"
    text.write_text("The first month of the year is January .\n" * 60)
    index = unembed.Index.build(lm, str(text), str(folder / f"index-{lm.device.type}"), top=5)
    yield "triggers", lambda: list(index.triggers(1, 3).rows())
    yield "similar", lambda: index.similar(1, 3)["cosine"]
    yield "gallery", lambda: [(row.layer, row.index) for row in index.memories(top=5).rows]
    yield "early exit", lambda: unembed.early_exit.fit(lm, str(text), method="margin").thresholds.tolist()


def main(family: str) -> None:
    """Compare every analysis; end with the first that fails or differs."""
    folder = Path(tempfile.mkdtemp())
    near = unembed.load(save_model(folder / "model", family))
    copy = type(near.hf).from_pretrained(folder / "model").eval()
    expected = {name: result() for name, result in analyses(near, folder)}
    _setup_privateuseone_for_python_backend(SECOND, _Module())
    torch.tensor = _new_tensor
    with _OnSecond():
        far = unembed.load(moved(copy), tokenizer=near.tokenizer)
        assert far.device.type == SECOND
        for name, result in analyses(far, folder):
            found = result()
            if isinstance(found, Tensor):
                torch.testing.assert_close(found.cpu(), expected[name].cpu(), rtol=1e-4, atol=1e-5, msg=name)
            elif isinstance(found, list) and found and isinstance(found[0], float):
                torch.testing.assert_close(_plain_tensor(found), _plain_tensor(expected[name]), rtol=1e-4, atol=1e-5)
            elif isinstance(found, float):
                assert abs(found - expected[name]) < 1e-4, name
            else:
                assert type(found) is type(expected[name]), name
    print(f"{family}: {len(expected)} analyses")


if __name__ == "__main__":
    main(sys.argv[1])

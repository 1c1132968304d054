"""Read a WikiLM from fairseq's own files (`dict.txt` and a checkpoint), without fairseq and without running its code.

A fairseq checkpoint is a pickle. It is read with torch's restricted unpickler, which builds only tensors and plain
containers. The only other class allowed is `argparse.Namespace` (the arguments of the training).

Source: fairseq's `transformer_lm_wiki103` and `Dictionary`. Checkpoints of older fairseq versions are converted in the
same way as fairseq converts them.
"""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from unembed.errors import InvalidInput, ModelNotUnderstood, ModelUnavailable, first_sentence, reading
from unembed.models.architectures.wikilm import WikiLMConfig, WikiLMForCausalLM
from unembed.models.architectures.word_level import END, SPECIALS, UNKNOWN, word_tokenizer

_OVERWRITE = "#fairseq:overwrite"
_IGNORED = re.compile(r"_float_tensor$|\.version$|^decoder\.embed_positions\.weights$")
_NOT_THIS = "Give a checkpoint of fairseq's transformer_lm_wiki103 (adaptive input, adaptive softmax, pre-norm)"


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The contents of fairseq's `dict.txt`: words in the order of their ids, with their counts in the training text."""

    words: tuple[str, ...]
    counts: Int[Tensor, " word"]
    """Zero for the four special tokens, which the file does not list, and for padding words."""


def read_dictionary(path: str | Path) -> Dictionary:
    """Read the vocabulary from a `dict.txt`: `<s> <pad> </s> <unk>`, then one word on each line.

    Raises:
        ModelUnavailable: there is no such file, or it is not UTF-8 text.
        InvalidInput: a line is not a word and a count, or a word comes twice.
    """
    words: list[str] = list(SPECIALS)
    counts, ids = [0] * len(SPECIALS), {w: i for i, w in enumerate(SPECIALS)}
    with reading(f"dictionary {path}", kind=ModelUnavailable):
        text = Path(path).read_text(encoding="utf-8")
    # splitlines() is not used, because it would also split at other line separators, which some words of WikiText
    # contain.
    for number, line in enumerate(text.rstrip("\n").split("\n"), start=1):
        overwrite = line.endswith(f" {_OVERWRITE}")
        entry = line.removesuffix(f" {_OVERWRITE}")
        word, space, count = entry.rpartition(" ")
        if not space or not word or not count.isdigit():
            raise InvalidInput(
                f"line {number} of {path}",
                why=f"{line[:60]!r} is not a word, a space and a count",
                instead="Give the dict.txt in the folder of the checkpoint",
            )
        if word not in ids:
            ids[word] = len(words)
            words.append(word)
            counts.append(int(count))
        elif overwrite:
            counts[ids[word]] = int(count)
        else:
            raise InvalidInput(
                f"line {number} of {path}",
                why=f"{word!r} is in the dictionary twice",
                instead="Give the dict.txt in the folder of the checkpoint",
            )
    return Dictionary(tuple(words), torch.tensor(counts))


@dataclass(frozen=True, eq=False)
class FairseqModel:
    """A model opened from a fairseq checkpoint and its dictionary."""

    model: WikiLMForCausalLM
    tokenizer: PreTrainedTokenizerFast
    token_counts: Int[Tensor, " d_vocab"]
    """How often each word occurs in the training text, from the dictionary.

    The dictionary gives no counts for `</s>` and `<unk>`, although both are frequent, so they get the largest count.
    """


def find_checkpoint(path: str | Path) -> tuple[Path, Path] | None:
    """Find a fairseq checkpoint and its `dict.txt`, given the `.pt` file or the folder that contains both.

    Returns:
        The paths of the checkpoint and of the dictionary; None if they are not found.

    Raises:
        InvalidInput: the folder contains several checkpoints.
    """
    path = Path(path).expanduser()
    folder = path if path.is_dir() else path.parent
    dictionary = folder / "dict.txt"
    if not dictionary.is_file():
        return None
    if path.is_file():
        return (path, dictionary) if path.suffix == ".pt" else None
    found = sorted(folder.glob("*.pt"))
    if len(found) > 1:
        raise InvalidInput(
            f"folder {path} holds {len(found)} checkpoints",
            why=", ".join(f.name for f in found),
            instead="Give the path of one of them",
        )
    return (found[0], dictionary) if found else None


def open_fairseq(checkpoint: str | Path, dictionary: str | Path) -> FairseqModel:
    """Open a WikiLM from a fairseq checkpoint and its dictionary, in evaluation mode and float32.

    Raises:
        ModelUnavailable: a file is missing or cannot be read, or the pickle contains more than data.
        ModelNotUnderstood: the checkpoint has another architecture, or does not fit its dictionary.
    """
    words = read_dictionary(dictionary)
    state, arguments = read_checkpoint(checkpoint)
    config, tensors = converted(state, arguments, str(checkpoint))
    if len(words.words) != config.vocab_size:
        raise ModelNotUnderstood(
            f"{checkpoint}",
            why=f"it has {config.vocab_size} words and {dictionary} has {len(words.words)}",
            instead="Use the dict.txt that came with the checkpoint: another order of words gives wrong predictions",
        )
    with torch.device("meta"):
        model = WikiLMForCausalLM(config)
    model.load_state_dict(tensors, strict=True, assign=True)
    counts = words.counts.clone()
    counts[[SPECIALS.index(END), SPECIALS.index(UNKNOWN)]] = counts.max()
    return FairseqModel(model.eval(), word_tokenizer(words.words), counts)


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint by fairseq's names, and its training arguments (empty if not saved).

    Raises:
        ModelUnavailable: there is no such file, it is not a checkpoint, or the pickle contains more than data.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelUnavailable(f"checkpoint {path}", why=str(error)) from error
    except pickle.UnpicklingError as error:
        named = re.search(r"(?:GLOBAL|class|global|function)\s+`?([\w.]+)", str(error))
        what = f"it requests to load {named.group(1)!r}" if named else "its pickle holds more than data"
        raise ModelUnavailable(
            f"checkpoint {path} is refused",
            why=f"{what}, and only tensors, plain containers and argparse.Namespace are read",
            instead="If you trust the file, save torch.load(...)['model'] and its args on their own and open that",
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelUnavailable(f"checkpoint {path}", why=f"torch cannot read it: {first_sentence(error)}") from error
    state = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ModelNotUnderstood(f"{path}", why="it has no entry 'model' that is a dict of tensors", instead=_NOT_THIS)
    arguments = content.get("args")
    return dict(state), vars(arguments) if isinstance(arguments, argparse.Namespace) else {}


def converted(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], name: str = "the checkpoint"
) -> tuple[WikiLMConfig, dict[str, Tensor]]:
    """Convert fairseq's tensors to the config and the tensors of a WikiLM; every tensor must be used.

    Raises:
        ModelNotUnderstood: a tensor is missing, unknown or of the wrong shape, or tied tensors differ.
    """
    left = {key: tensor for key, tensor in _current_names(state).items() if not _IGNORED.search(key)}
    reading = _Reading(left, name)
    n_bands = reading.count(r"decoder\.embed_tokens\.embeddings\.(\d+)\.0\.weight")
    n_layers = reading.count(r"decoder\.layers\.(\d+)\.fc1\.weight")
    if n_bands < 2 or n_layers < 1:
        raise reading.refusal("it has no adaptive input embedding or no layers")
    out: dict[str, Tensor] = {}
    sizes, widths = [], []
    for b in range(n_bands):
        words = reading.take(f"decoder.embed_tokens.embeddings.{b}.0.weight")
        out[f"model.embed_tokens.bands.{b}.words.weight"] = words
        out[f"model.embed_tokens.bands.{b}.projection.weight"] = reading.take(
            f"decoder.embed_tokens.embeddings.{b}.1.weight"
        )
        sizes.append(words.shape[0])
        widths.append(words.shape[1])
    tied = _readout(reading, out, n_bands)
    for layer in range(n_layers):
        for part in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.out_proj",
            "self_attn_layer_norm",
            "fc1",
            "fc2",
            "final_layer_norm",
        ):
            for kind in ("weight", "bias"):
                out[f"model.layers.{layer}.{part}.{kind}"] = reading.take(f"decoder.layers.{layer}.{part}.{kind}")
    final_norm = "decoder.layer_norm.weight" in left
    if final_norm:
        out["model.norm.weight"] = reading.take("decoder.layer_norm.weight")
        out["model.norm.bias"] = reading.take("decoder.layer_norm.bias")
    if left:
        raise reading.refusal(f"it contains tensors that a WikiLM does not have: {', '.join(sorted(left)[:3])}")
    _check_arguments(reading, arguments)
    config = WikiLMConfig(
        vocab_size=sum(sizes),
        hidden_size=widths[0],
        intermediate_size=out["model.layers.0.fc1.weight"].shape[0],
        num_hidden_layers=n_layers,
        num_attention_heads=int(arguments.get("decoder_attention_heads", 8)),
        cutoffs=[sum(sizes[: b + 1]) for b in range(n_bands - 1)],
        adaptive_factor=widths[0] // widths[1],
        tie_adaptive_proj=tied,
        final_norm=final_norm,
        activation_function=str(arguments.get("activation_fn", "relu")),
        max_position_embeddings=int(arguments.get("tokens_per_sample", 3072)),
    )
    with torch.device("meta"):
        expected = {key: tensor.shape for key, tensor in WikiLMForCausalLM(config).state_dict().items()}
    wrong = [key for key, tensor in out.items() if expected.get(key) != tensor.shape]
    if wrong:
        raise reading.refusal(f"{wrong[0]} has shape {tuple(out[wrong[0]].shape)}, not {tuple(expected[wrong[0]])}")
    return config, {key: tensor.float().contiguous() for key, tensor in out.items()}


@dataclass
class _Reading:
    """The tensors of a checkpoint that are not converted yet; any that are left at the end are reported."""

    left: dict[str, Tensor]
    name: str

    def refusal(self, why: str) -> ModelNotUnderstood:
        """Return an error that names the checkpoint."""
        return ModelNotUnderstood(self.name, why=why, instead=_NOT_THIS)

    def take(self, key: str) -> Tensor:
        if key not in self.left:
            raise self.refusal(f"it has no tensor {key}")
        return self.left.pop(key)

    def take_equal(self, key: str, other: Tensor) -> None:
        """Check that a tensor equals another one, and mark it as used."""
        if not torch.equal(self.take(key), other):
            raise self.refusal(f"{key} and the embedding should be equal (tied weights), but differ")

    def count(self, pattern: str) -> int:
        """Count the tensors whose names match a pattern with a number; they must be 0, 1, 2, ... without gaps."""
        numbers = sorted(int(m.group(1)) for key in self.left if (m := re.fullmatch(pattern, key)))
        if numbers != list(range(len(numbers))):
            raise self.refusal(f"some of its tensors are numbered {numbers}, not 0, 1, 2 and so on")
        return len(numbers)


def _readout(reading: _Reading, out: dict[str, Tensor], n_bands: int) -> bool:
    """Check that the softmax shares the embedding's word vectors; return whether it shares the projections too."""
    softmax = "decoder.adaptive_softmax"
    reading.take_equal(f"{softmax}.head.word_proj.weight", out["model.embed_tokens.bands.0.words.weight"])
    out["lm_head.class_proj.weight"] = reading.take(f"{softmax}.head.class_proj.weight")
    tied: list[bool] = []
    for b in range(1, n_bands):
        words = out[f"model.embed_tokens.bands.{b}.words.weight"]
        widening = out[f"model.embed_tokens.bands.{b}.projection.weight"]
        reading.take_equal(f"{softmax}.tail.{b - 1}.2.weight", words)
        projection = reading.take(f"{softmax}.tail.{b - 1}.0.weight")
        # A tied projection has the shape of the embedding's projection, (d_model, width); an untied one is stored
        # transposed, (width, d_model).
        tied.append(projection.shape == widening.shape)
        if tied[-1] and not torch.equal(projection, widening):
            raise reading.refusal(f"{softmax}.tail.{b - 1}.0.weight differs from the embedding's projection")
        if not tied[-1]:
            out[f"lm_head.projections.{b - 1}.weight"] = projection
    if len(set(tied)) > 1:
        raise reading.refusal("some projections of its readout are tied to the embedding and some are not")
    return tied[0]


def _current_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give tensors of old checkpoints their present names: numbered norms are renamed, and stacked Q, K, V split."""
    out: dict[str, Tensor] = {}
    for key, tensor in state.items():
        key = re.sub(r"\.layer_norms\.0\.", ".self_attn_layer_norm.", key)
        key = re.sub(r"\.layer_norms\.2\.", ".final_layer_norm.", key)
        stacked = re.fullmatch(r"(.*\.self_attn)\.in_proj_(weight|bias)", key)
        if stacked is None:
            out[key] = tensor
            continue
        for letter, part in zip("qkv", tensor.chunk(3), strict=True):
            out[f"{stacked.group(1)}.{letter}_proj.{stacked.group(2)}"] = part
    return out


_UNDERSTOOD: dict[str, tuple[Any, ...]] = {
    "decoder_normalize_before": (True,),
    "decoder_learned_pos": (False,),
    "no_token_positional_embeddings": (False,),
    "adaptive_input": (True,),
    "no_scale_embedding": (False,),
    "character_embeddings": (False,),
}
"""Training arguments that change the meaning of the tensors, with the values that this reader supports."""


def _check_arguments(reading: _Reading, arguments: Mapping[str, Any]) -> None:
    for argument, understood in _UNDERSTOOD.items():
        if argument in arguments and bool(arguments[argument]) not in understood:
            raise reading.refusal(f"it was trained with {argument}={arguments[argument]}, which is not supported")

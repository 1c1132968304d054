"""Open a model by the name of a shipped or hub model, from a folder or file, or from an object in memory."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from unembed.errors import (
    InvalidInput,
    ModelNotUnderstood,
    ModelUnavailable,
    OutOfMemory,
    UnembedError,
    first_sentence,
    reading,
    reading_fault,
)
from unembed.models.adapters import ADAPTER, apply_adapter, check_adapter
from unembed.models.architectures import attention_only  # noqa: F401  (registers the architecture with AutoModel)
from unembed.models.architectures.fairseq import find_checkpoint, open_fairseq
from unembed.models.gguf import QUANTISED, gguf_file, read_gguf
from unembed.models.hooked_transformer import check_same, is_hooked, name_of
from unembed.models.hub import is_local_only, is_path
from unembed.models.inner_model import unwrapped
from unembed.models.known_names import did_you_mean, known_names
from unembed.models.load_report import check_weights, collected_log
from unembed.models.published_models import PUBLISHED, fetched_folder
from unembed.models.shipped_models import DEFAULT_MODEL, SHIPPED, shipped_folder, tokenizer_folder

TOKEN_COUNTS = "token_counts.json"
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Opened:
    """A model in memory before its structure is known."""

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    revision: str | None = None
    token_counts: Int[Tensor, " known"] | None = None
    """How often each token occurred in the training text; None if the model came without these counts."""
    special_tokens: bool = True
    """Whether the tokenizer adds its special tokens to texts."""
    tokenizer_fault: str = ""
    """Why the tokenizer could not be opened although its files exist; empty if it was opened or there are no files."""

    @property
    def quantised(self) -> str:
        """The quantised formats from which the weights were dequantised; empty if there were none."""
        return getattr(self.hf.config, QUANTISED, "")


def open_model(
    model: object = None,
    *,
    adapter: str | Path | None = None,
    special_tokens: bool = True,
    **how: Any,
) -> Opened:
    """Find a model and load it. `unembed.load` takes the same arguments and explains them.

    Raises:
        ModelUnavailable: the model, its adapter or its folder is not found, or the hub cannot be reached.
        ModelNotUnderstood: transformers does not have the architecture.
        InvalidInput: arguments contradict each other.
    """
    if is_hooked(model):
        opened = _open(name_of(model), **{**how, "dtype": how.get("dtype") or model.cfg.dtype})  # type: ignore[attr-defined]
        check_same(model, opened.hf, opened.name)
    else:
        opened = _open(model, **how)
    if adapter is not None:
        folder = Path(adapter).expanduser()
        apply_adapter(opened.hf, folder, opened.name)
        opened = replace(opened, name=f"{opened.name}+{folder.name}")
    return opened if special_tokens else replace(opened, special_tokens=False)


def _open(
    model: object = None,
    *,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    revision: str | None = None,
    offline: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    offload_folder: str | Path | None = None,
    trust_remote_code: bool = False,
) -> Opened:
    model = unwrapped(model)
    if isinstance(model, PreTrainedModel):
        if any(v is not None for v in (revision, dtype, device_map, offload_folder)):
            raise InvalidInput(
                "revision, dtype, device_map and offload_folder",
                why="the model is already in memory",
                instead="Set them when you load it",
            )
        return _in_memory(model, tokenizer, device)
    if model is not None and not isinstance(model, (str, Path)):
        raise InvalidInput(
            f"a {type(model).__name__} cannot be opened",
            why="load() takes a name, a folder or a PreTrainedModel",
            instead="Pass the transformers model itself",
        )
    _check_device(device)  # before anything large is read
    if device is not None and device_map is not None:
        raise InvalidInput(
            f"device {str(device)!r}", why="device_map already places the model", instead="Leave one of them out"
        )
    name = str(model) if model is not None else DEFAULT_MODEL
    placed = {"device_map": device_map, "offload_folder": offload_folder}
    placed = {} if device_map is None else {n: v for n, v in placed.items() if v is not None}
    if name in SHIPPED:
        return _shipped(name, dtype, device, placed)
    if name in PUBLISHED:
        if revision is not None:
            raise InvalidInput(
                f"revision of {name}", why="the model has only one version", instead="Leave revision out"
            )
        opened = _open(fetched_folder(name), tokenizer=tokenizer, dtype=dtype, device=device, **placed)
        return replace(opened, name=name, revision=PUBLISHED[name].sha256)
    return _pretrained(
        name,
        tokenizer,
        revision=revision,
        offline=offline,
        dtype=dtype,
        device=device,
        placed=placed,
        trust_remote_code=trust_remote_code,
    )


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype or "auto"
    if dtype not in _DTYPES:
        raise InvalidInput(f"dtype {dtype!r}", why=f"it is not one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _check_device(device: str | torch.device | None) -> None:
    if device is None:
        return
    try:
        is_real = torch.empty(1, device=device).device.type != "meta"
        why = "it holds no numbers"
    except (RuntimeError, TypeError, AssertionError) as error:  # torch asserts that it was compiled with CUDA
        is_real, why = False, first_sentence(error)
    if not is_real:
        raise InvalidInput(f"device {str(device)!r}", why=why, instead="Use cpu, or one that unembed doctor lists")


def _in_memory(hf: PreTrainedModel, tokenizer: Any, device: Any) -> Opened:
    if hf.training:
        raise InvalidInput(
            f"{type(hf).__name__} is in training mode",
            why="dropout would change every number",
            instead="Call model.eval() first",
        )
    is_fetched = any(hasattr(part, "_hf_hook") for part in hf.modules())  # accelerate's hooks load the weights
    if not is_fetched and any(weight.is_meta for weight in hf.parameters()):
        raise InvalidInput(
            f"{type(hf).__name__} holds no weights",
            why="it was made without them, on the meta device",
            instead="Load them first (nnsight: dispatch=True)",
        )
    if _needs_loops(hf):
        raise InvalidInput(
            f"{type(hf).__name__} in float64",
            why="its experts use grouped matrix products, which PyTorch does not support in float64",
            instead='Call model.set_experts_implementation("eager") first',
        )
    if device is not None:
        raise InvalidInput("device", why="the model is already in memory", instead="Move it with model.to(device)")
    if isinstance(tokenizer, str):
        tokenizer, _ = _given_or_read(tokenizer, tokenizer, {})
    _check_is_decoder(hf)
    name = getattr(hf.config, "_name_or_path", "") or type(hf).__name__
    return Opened(hf, tokenizer, Path(name).name if Path(name).exists() else name)


def _shipped(name: str, dtype: Any, device: Any, placed: dict[str, Any]) -> Opened:
    folder = shipped_folder(name)
    if not (folder / "config.json").exists():
        raise ModelUnavailable(f"model {name}", why=f"its files are missing from {folder}", instead="Reinstall unembed")
    chosen = torch.float32 if dtype is None else _dtype(dtype)
    with collected_log(name) as messages:
        hf = AutoModelForCausalLM.from_pretrained(folder, dtype=chosen, local_files_only=True, **placed)
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(name), local_files_only=True)
    messages.warn()
    return Opened(_placed(hf, device), tokenizer, name, token_counts=_token_counts(folder))


def _token_counts(folder: Path) -> Int[Tensor, " known"] | None:
    """Return how often each token occurs in the training text; None if the model's folder has no counts."""
    path = folder / TOKEN_COUNTS
    if not path.exists():
        return None
    remedy = "Delete it, or copy it again from the trained model"
    with reading(f"file {path}", instead=remedy, kind=ModelUnavailable):
        counts = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(counts, list) or not counts or not all(type(count) is int and count >= 0 for count in counts):
        raise ModelUnavailable(f"file {path}", why="it is not a list of one count for each token", instead=remedy)
    return torch.tensor(counts)


def _needs_loops(hf: PreTrainedModel) -> bool:
    """Tell whether the experts use grouped matrix products in float64, which PyTorch does not support."""
    grouped = getattr(hf.config.get_text_config(), "_experts_implementation", None) == "grouped_mm"
    return grouped and hf.dtype == torch.float64 and hf._can_set_experts_implementation()


def _placed(hf: PreTrainedModel, device: Any) -> PreTrainedModel:
    if _needs_loops(hf):
        hf.set_experts_implementation("eager")
    return (hf if device is None else hf.to(device)).eval()  # type: ignore[arg-type]


def _path(name: str) -> Path:
    """Return the name as a path, whether or not anything exists there.

    Raises an error if the path is too long, names the home folder of an unknown user (`~user`), or may not be accessed.
    """
    try:
        path = Path(name).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            path.stat()  # unlike `exists`, it raises the same errors in every version of Python
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ModelUnavailable(f"model {name[:80]}", why=why, instead="Give a folder or a name of the hub") from error
    return path


def _pretrained(
    name: str,
    tokenizer: Any,
    *,
    revision: str | None,
    offline: bool,
    dtype: Any,
    device: Any,
    placed: dict[str, Any],
    trust_remote_code: bool,
) -> Opened:
    if not name.strip():
        raise ModelUnavailable("a model without a name", instead="Give a folder, or a name of the hub")
    path = _path(name)
    if not (path / "config.json").exists() and (found := find_checkpoint(path)) is not None:
        _refuse_placing(placed, "fairseq")
        return _wikilm(name, *found, dtype=dtype, device=device)
    if (weights := gguf_file(path)) is not None:
        _refuse_placing(placed, "GGUF")
        if revision is not None:
            raise InvalidInput(f"revision of {name}", why="a GGUF file has no revisions", instead="Leave revision out")
        return _gguf(weights, tokenizer, dtype=dtype, device=device)
    check_adapter(path)
    if path.is_dir() and not ((path / "config.json").exists() or (path / ADAPTER).exists()):
        raise ModelUnavailable(
            f"folder {name}", why="it contains no config.json", instead="Give a saved model's folder"
        )
    if path.suffix == ".gguf" and not path.exists():
        raise ModelUnavailable(f"no file at {name}", why="there is no such GGUF file", instead="Give the path of one")
    if path.is_file() or (is_path(name) and not path.is_dir()):
        why = "it is a file" if path.is_file() else "there is no such folder"
        raise ModelUnavailable(f"no model folder at {name}", why=why, instead="Give a saved model's folder")
    where = str(path) if path.is_dir() else name
    counts = _token_counts(path) if path.is_dir() else None  # a damaged file is refused before anything large is read
    common = {
        "revision": revision,
        "local_files_only": offline or path.is_dir() or is_local_only(name, revision),
        "trust_remote_code": trust_remote_code,
    }
    # If peft is installed, transformers first looks for an adapter, and sends a request to the hub even if
    # `local_files_only` is set.
    adapters = {"adapter_kwargs": {"local_files_only": True}} if common["local_files_only"] else {}
    try:
        with collected_log(name) as messages:
            hf, info = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
                where, dtype=_dtype(dtype), output_loading_info=True, **common, **placed, **adapters
            )
    except Exception as error:  # many kinds of error; each becomes one line with a remedy
        raise _explained(where, error, offline) from error
    check_weights(name, info)
    found, fault = _given_or_read(tokenizer, where, common)
    commit = revision or getattr(hf.config, "_commit_hash", None)
    _check_is_decoder(hf)
    messages.warn()
    shown = path.name if path.is_dir() else name
    return Opened(_placed(hf, device), found, shown, commit, token_counts=counts, tokenizer_fault=fault)


def _refuse_placing(placed: dict[str, Any], kind: str) -> None:
    if placed:
        remedy = "Give device, or open what lm.hf.save_pretrained(folder) saved"
        raise InvalidInput("device_map", why=f"a {kind} model is loaded as a whole", instead=remedy)


def _gguf(path: Path, tokenizer: Any, *, dtype: Any, device: Any) -> Opened:
    """Open the model in a GGUF file, with the tokenizer in that file unless another is given."""
    read = read_gguf(path, _dtype(dtype))
    _check_is_decoder(read.hf)
    given, _ = (read.tokenizer, "") if tokenizer is None else _given_or_read(tokenizer, str(tokenizer), {})
    return Opened(_placed(read.hf, device), given, path.name)


def _wikilm(name: str, checkpoint: Path, dictionary: Path, *, dtype: Any, device: Any) -> Opened:
    """Open a WikiLM from fairseq's files, with the tokenizer made from its dictionary."""
    opened = open_fairseq(checkpoint, dictionary)
    chosen = torch.float32 if dtype is None else _dtype(dtype)
    hf = opened.model if chosen == "auto" else opened.model.to(chosen)  # type: ignore[arg-type]
    return Opened(_placed(hf, device), opened.tokenizer, Path(name).stem or name, token_counts=opened.token_counts)


_TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "*.model", "*.tiktoken")


def _given_or_read(
    given: PreTrainedTokenizerBase | str | None, where: str, common: dict[str, Any]
) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer that the caller gives, or else the model's own; and the reason if there is none.

    The reason is empty if there is a tokenizer, or if the model has no tokenizer files.
    """
    if isinstance(given, PreTrainedTokenizerBase):
        return given, ""
    if given is None:
        return _tokenizer(where, common)
    found, fault = _tokenizer(given, common)
    if found is None:
        why = fault or "no folder or hub model has this name"
        raise ModelUnavailable(f"tokenizer {given}", why=why, instead="Give its folder or id")
    return found, ""


def _tokenizer(where: str, common: dict[str, Any]) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer of a folder or hub model; or None, with the reason if there are files that cannot be read.

    Without a tokenizer, token ids still work; only requests that need text are refused.
    """
    folder = Path(where)
    has_files = folder.is_dir() and any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES)
    try:
        with collected_log(where) as messages:
            found = AutoTokenizer.from_pretrained(where, **common)
    except Exception as error:  # transformers and tokenizers raise many kinds of error
        if "trust_remote_code" in str(error):
            return None, "it is custom code, which runs only if you allow it (trust_remote_code)"
        return None, f"it cannot be read: {first_sentence(error)}" if has_files else ""
    messages.warn()
    # Without tokenizer files, some tokenizer classes still create a tokenizer, which has only special tokens and is
    # useless.
    if len(found) > len(found.all_special_tokens):
        return found, ""
    return None, "it has no tokens but special ones" if has_files else ""


def _no_decoder(where: str) -> str:
    """Return the reason why transformers does not open a model as a decoder: the kind of model that it is."""
    try:
        config = AutoConfig.from_pretrained(where, local_files_only=True)
    except (OSError, ValueError, KeyError):
        kind = PreTrainedConfig.get_config_dict(where, local_files_only=True)[0].get("model_type", "not named")
        return f"transformers does not support its architecture ({kind})"
    inner = getattr(config, "text_config", None)
    if config.is_encoder_decoder:
        what = "an encoder-decoder"
    elif inner is not None:
        kind = "a vision-language model" if hasattr(config, "vision_config") else "a model of several modalities"
        what = f"{kind}, whose language model ({inner.model_type}) opens where it is saved alone"
    else:
        what = "no decoder"
    return f"{config.model_type} is {what}; unembed reads decoders"


def _check_is_decoder(hf: PreTrainedModel) -> None:
    """Refuse an encoder such as BERT, whose positions also attend to later ones; transformers itself would load it."""
    is_masked = hf.config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if is_masked and getattr(hf.config, "is_decoder", None) is False:
        raise ModelNotUnderstood(
            type(hf).__name__,
            why=f"{hf.config.model_type} is an encoder, whose positions attend to later ones; unembed opens decoders",
        )


def _folder_fault(folder: Path, error: Exception) -> UnembedError:
    """Return the error that explains why transformers cannot open the model in a folder."""
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        why, instead = f"config.json cannot be read: {reading_fault(fault)}", "Save the model again"
        return ModelUnavailable(f"folder {folder}", why=why, instead=instead)
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        why, instead = "it contains no weights (*.safetensors or *.bin)", "Save the model with its weights"
        return ModelUnavailable(f"folder {folder}", why=why, instead=instead)
    return ModelUnavailable(f"folder {folder}", why=first_sentence(error))


def _explained(name: str, error: Exception, offline: bool) -> Exception:
    text = " ".join(str(error).split())
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return OutOfMemory(
            f"loading {name}", why="it does not fit", instead="Try dtype='bfloat16' or device_map='auto'"
        )
    if isinstance(error, ImportError):
        return ModelUnavailable(f"model {name}", why=first_sentence(error))
    if "offload_folder" in text:
        return ModelUnavailable(
            f"model {name}",
            why="weights on disk have to be rewritten: its files hold them in another form",
            instead="Pass offload_folder=, a folder with room for them",
        )
    if "trust_remote_code" in text:
        return ModelUnavailable(
            f"model {name}",
            why="its repository contains code, which runs only if you allow it",
            instead="Read that code, then allow it: --trust-remote-code, in Python trust_remote_code=True",
        )
    if "model type" in text or "Unrecognized" in text:
        return ModelNotUnderstood(f"model {name}", why=_no_decoder(name))
    if isinstance(error, (OSError, ConnectionError)) or "offline" in text.lower():
        if Path(name).is_dir():
            return _folder_fault(Path(name), error)
        return ModelUnavailable(
            f"model {name}",
            why="it is not in the local cache"
            + ("" if offline else ", and the hub does not have it or cannot be reached"),
            instead=f"{did_you_mean(name)}Check the name and the network, give a folder, or use one of "
            f"{', '.join(known_names())}",
        )
    return ModelUnavailable(f"model {name}", why=f"{type(error).__name__}: {first_sentence(error)}")

"""Groups of options that many commands share: the model, the conversation, and the output format."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from unembed.errors import InvalidInput
from unembed.options import LensFile, Option
from unembed.results import check_writable

if TYPE_CHECKING:
    from unembed import LanguageModel
    from unembed.document import Report

NO_LENS = "none"
"""The value of --lens that selects the logit lens."""
MODEL_HELP = "The model to open: a name that `unembed models` lists, a Hugging Face id, a folder or a GGUF file."
Model = Annotated[
    str,
    Option(
        MODEL_HELP,
        "m",
        variable="UNEMBED_MODEL",
    ),
]
Json = Annotated[bool, Option("Print JSON with a stable schema.", name="json")]
Plain = Annotated[bool, Option("Print plain text, without colours, bars or symbols.")]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Options for the model to open, such as its name, dtype, device and lens."""

    PANEL: ClassVar[str] = "Model"
    model: Model = "wren"
    revision: Annotated[str | None, Option("Commit, tag or branch of a model on the Hugging Face hub.")] = None
    tokenizer: Annotated[
        str | None, Option("Folder or Hugging Face id of a tokenizer to use if the model has none.")
    ] = None
    offline: Annotated[bool, Option("Use only files on this machine; download nothing.")] = False
    dtype: Annotated[
        str | None, Option("Data type of the weights: float32, bfloat16 or float16; default: as saved.")
    ] = None
    device: Annotated[
        str | None,
        Option(
            "Device: cpu, cuda, cuda:1, ...; auto: put the weights on all GPUs, the rest in main memory, then on disk."
        ),
    ] = None
    lens: LensFile = None
    trust_remote_code: Annotated[
        bool, Option("Run the code in the model's repository, which can do anything that you can.")
    ] = False
    adapter: Annotated[Path | None, Option("Apply the PEFT adapter in this folder.", metavar="DIR")] = None
    special_tokens: Annotated[
        bool, Option("Encode texts with the special tokens that the tokenizer adds, such as a begin-of-text token.")
    ] = True

    @property
    def is_default(self) -> bool:
        """True if no option changes the model's dtype, tokenizer, adapter, special tokens or lens."""
        changed = (self.dtype, self.tokenizer, self.adapter)
        return changed == (None, None, None) and self.special_tokens and self.lens in (None, NO_LENS)

    def open(self, seed: int | None = None) -> LanguageModel:
        """Load the model and its lens, and seed torch's random numbers.

        Raises:
            ModelUnavailable: the model, the folder or the network cannot be found.
            InvalidInput: the lens file does not exist, is not a lens, or belongs to another model.
        """
        from unembed.cli.command import AT_END
        from unembed.cli.model_loading import opened, say_unmeasured, use_lens

        if self.lens not in (None, NO_LENS) and not Path(self.lens).is_file():
            raise InvalidInput(f"--lens {self.lens}", why="there is no such file", instead="Make one: unembed fit-lens")
        lm = opened(self, seed)
        if self.lens != NO_LENS:
            use_lens(lm, self.lens)
            if lm.lens is None:
                lm.on_logit_lens = partial(AT_END.append, partial(say_unmeasured, self.model))
        return lm


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Options with which each prompt becomes a message of a conversation, in the format of the tokenizer's template."""

    PANEL: ClassVar[str] = "Conversation"
    chat: Annotated[bool, Option("Format the prompt as a user's message, with the tokenizer's chat template.")] = False
    system: Annotated[str | None, Option("The system message of the conversation.")] = None
    messages: Annotated[
        Path | None,
        Option(
            "A file with earlier messages of the conversation: a JSON list of {role, content}, or one object per line.",
            metavar="FILE",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """True if one of the options is given."""
        return self.chat or self.system is not None or self.messages is not None

    def texts(self, lm: LanguageModel, prompts: Sequence[str]) -> list[str]:
        """Return the prompts unchanged; if these options give a conversation, return each prompt as its next message.

        Raises:
            InvalidInput: the tokenizer has no chat template, or the template rejects the conversation.
        """
        if not self.is_given:
            if lm.tokenizer is not None and lm.vocabulary.is_without_chat(prompts):
                print(
                    f"unembed: {lm.name} was trained on conversations, but this text is not formatted as one; "
                    "--chat formats it as a user's message.",
                    file=sys.stderr,
                )
            return list(prompts)
        from unembed.models import read_messages

        before = [] if self.messages is None else read_messages(self.messages)
        turns = [[*before, {"role": "user", "content": prompt}] for prompt in prompts] or [before]
        return [lm.vocabulary.chat(one, self.system).text for one in turns]


def _data_in_utf8() -> None:
    """Set the encoding of stdout to UTF-8 for JSON and CSV; the terminal's may differ (cp1252 on Windows)."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # tests and notebooks replace stdout by other objects
        sys.stdout.reconfigure(encoding="utf-8")  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, kw_only=True)
class TextOutput:
    """Output options of commands whose result is not a table: JSON or plain text."""

    PANEL: ClassVar[str] = "Output"
    as_json: Json = False
    plain: Plain = False

    def __post_init__(self) -> None:
        """Set the encoding of stdout for JSON."""
        if self.as_json:
            _data_in_utf8()


@dataclass(frozen=True, kw_only=True)
class Output:
    """Output options: the formats in which the result is written."""

    PANEL: ClassVar[str] = "Output"
    as_json: Json = False
    csv: Annotated[bool, Option("Print the main table as CSV.")] = False
    plain: Plain = False
    html: Annotated[
        Path | None, Option("Write the result to this file as a self-contained HTML page.", metavar="FILE")
    ] = None

    def __post_init__(self) -> None:
        """Check the formats, before the computation starts.

        Raises:
            typer.BadParameter: both --json and --csv are given.
            InvalidInput: the HTML file cannot be written.
        """
        if self.as_json and self.csv:
            raise typer.BadParameter("--json and --csv both write to stdout; choose one")
        if self.html is not None:
            check_writable(self.html)
        if self.as_json or self.csv:
            _data_in_utf8()

    def takes(self, report: Report) -> bool:
        """Return True if the report should not be printed. A subclass that stores reports overrides this method."""
        return False

    @property
    def for_terminal(self) -> bool:
        """True if the result is to be printed as text in the terminal, because no other format was requested."""
        return not self.as_json and not self.csv and self.html is None

"""Options that many commands share, in groups: which model to open, and how to write the result."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
"""What --lens takes for the logit lens."""
Model = Annotated[
    str,
    Option(
        "A name that `unembed models` lists, a Hugging Face id, a folder or a GGUF file.", "m", variable="UNEMBED_MODEL"
    ),
]
Json = Annotated[bool, Option("JSON on stdout, with a stable schema.", name="json")]
Plain = Annotated[bool, Option("Plain text: no colours, bars or symbols.")]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Which model to open, and how."""

    PANEL: ClassVar[str] = "Model"
    model: Model = "wren"
    revision: Annotated[str | None, Option("Commit, tag or branch of a hub model.")] = None
    tokenizer: Annotated[str | None, Option("Tokenizer folder or hub id, if the model has none.")] = None
    offline: Annotated[bool, Option("Use only what is on this machine.")] = False
    dtype: Annotated[str | None, Option("float32, bfloat16, float16; default: as saved.")] = None
    device: Annotated[str | None, Option("cpu, cuda, cuda:1, ...; auto: over all GPUs, then memory, then disk.")] = None
    lens: LensFile = None
    trust_remote_code: Annotated[
        bool, Option("Run the code in the model's repository, which can do anything that you can.")
    ] = False
    adapter: Annotated[Path | None, Option("Apply the PEFT adapter in this folder.", metavar="DIR")] = None
    special_tokens: Annotated[
        bool, Option("Encode texts with the special tokens that the tokenizer adds, such as a begin token.")
    ] = True

    @property
    def is_default(self) -> bool:
        """Tell whether the model is opened as it is saved: its own dtype and tokenizer, no adapter, no lens."""
        changed = (self.dtype, self.tokenizer, self.adapter)
        return changed == (None, None, None) and self.special_tokens and self.lens in (None, NO_LENS)

    def open(self, seed: int | None = None) -> LanguageModel:
        """The opened model, with its lens; torch's random numbers start from the seed.

        Raises:
            ModelUnavailable: no such model, folder or network.
            InvalidInput: the file of the lens is none, or of another model.
        """
        from unembed.cli.model_loading import opened, use_lens

        if self.lens not in (None, NO_LENS) and not Path(self.lens).is_file():
            raise InvalidInput(f"--lens {self.lens}", why="there is no such file", instead="Make one: unembed fit-lens")
        lm = opened(
            self.model,
            tokenizer=self.tokenizer,
            revision=self.revision,
            offline=self.offline,
            dtype=self.dtype,
            device=self.device,
            trust_remote_code=self.trust_remote_code,
            adapter=self.adapter,
            special_tokens=self.special_tokens,
            seed=seed,
        )
        if self.lens != NO_LENS:
            use_lens(lm, self.lens)
        return lm


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Whether prompts are messages of a conversation."""

    PANEL: ClassVar[str] = "Conversation"
    chat: Annotated[bool, Option("Give the prompt as a user's message, by the tokenizer's chat template.")] = False
    system: Annotated[str | None, Option("The system's message of the conversation.")] = None
    messages: Annotated[
        Path | None,
        Option("Earlier turns: a JSON list of {role, content}, or one such object on each line.", metavar="FILE"),
    ] = None

    @property
    def is_given(self) -> bool:
        """Tell whether there is a conversation."""
        return self.chat or self.system is not None or self.messages is not None

    def texts(self, lm: LanguageModel, prompts: Sequence[str]) -> list[str]:
        """The prompts as the model reads them: as they are, or each as the next message of the conversation.

        Raises:
            InvalidInput: there is no template, or it refuses the conversation.
        """
        if not self.is_given:
            if lm.tokenizer is not None and lm.vocabulary.is_without_chat(prompts):
                print(
                    f"unembed: {lm.name} was trained on conversations, and this text is given as it is; "
                    "--chat gives it as a user's message.",
                    file=sys.stderr,
                )
            return list(prompts)
        from unembed.models import read_messages

        before = [] if self.messages is None else read_messages(self.messages)
        turns = [[*before, {"role": "user", "content": prompt}] for prompt in prompts] or [before]
        return [lm.vocabulary.chat(one, self.system).text for one in turns]


def _data_in_utf8() -> None:
    """Write JSON and CSV in UTF-8, whatever the encoding of the terminal (Windows: cp1252)."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not where a test or a notebook took its place
        sys.stdout.reconfigure(encoding="utf-8")  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, kw_only=True)
class TextOutput:
    """The form in which a result is written that is not one table."""

    PANEL: ClassVar[str] = "Output"
    as_json: Json = False
    plain: Plain = False

    def __post_init__(self) -> None:
        """Prepare stdout for data."""
        if self.as_json:
            _data_in_utf8()


@dataclass(frozen=True, kw_only=True)
class Output:
    """The form in which the result is written."""

    PANEL: ClassVar[str] = "Output"
    as_json: Json = False
    csv: Annotated[bool, Option("One table as CSV on stdout.")] = False
    plain: Plain = False
    html: Annotated[Path | None, Option("Write a self-contained page.", metavar="FILE")] = None

    def __post_init__(self) -> None:
        """Check the forms before anything costs time.

        Raises:
            typer.BadParameter: two forms for stdout.
            InvalidInput: the page cannot be written there.
        """
        if self.as_json and self.csv:
            raise typer.BadParameter("--json and --csv both write to stdout; choose one")
        if self.html is not None:
            check_writable(self.html)
        if self.as_json or self.csv:
            _data_in_utf8()

    def takes(self, report: Report) -> bool:
        """Tell whether the result goes elsewhere than to the terminal and files; such a kind of output keeps it."""
        return False

    @property
    def for_terminal(self) -> bool:
        """Tell whether only the terminal's form is requested."""
        return not self.as_json and not self.csv and self.html is None

"""The parameters and bodies of the API's requests, with types and bounds."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from unembed import Edit, names
from unembed.server.state import MAX_EDITS, MAX_PROMPT, ServerState
from unembed.trace import MemoryOrder, Question, Trace

LARGEST = 1_000_000
"""The largest layer, index or position in a request; SQLite, Arrow and torch all accept it."""


async def server_state(request: Request) -> ServerState:
    """Return the `ServerState` of the application (a FastAPI dependency)."""
    return request.app.state.server


State = Annotated[ServerState, Depends(server_state)]
TraceId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", description="the id that POST /traces returned")]
LayerNumber = Annotated[int, Path(ge=0, le=LARGEST, description="a layer, from 0")]
Index = Annotated[int, Path(ge=0, le=LARGEST, description="a memory or head of the layer, from 0")]
Position = Annotated[int, Query(ge=-LARGEST, le=LARGEST, description="from 0; negative from the end")]
Token = Annotated[str | None, Query(max_length=200, description="a token's text, or #id")]
Against = Annotated[
    str | None,
    Query(max_length=200, description="the token to compare with, or #id; default: the runner-up"),
]
Alone = Annotated[bool, Query(description="explain the target's logit alone")]
Order = Annotated[
    MemoryOrder,
    Query(description="what memories are sorted by; deviation: the effect minus that of the mean coefficient"),
]
RequiredToken = Annotated[str, Query(min_length=1, max_length=200, description="a token's text, or #id")]
Basis = Annotated[
    names.Basis | None,
    Query(description="how the residual stream is read; default: by the fitted lens, else through the final norm"),
]
Pole = names.Pole
Top = Annotated[int, Query(ge=1, le=50)]
Client = Annotated[
    str,
    Header(alias="x-client", max_length=64, description="an id of the page, whose newer request cancels an older one"),
]
Seed = Annotated[int, Query(ge=0, le=LARGEST)]
AuthorName = Annotated[str, Field(min_length=1, max_length=80, pattern=r"\S")]
LabelText = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


def parse_token(text: str) -> str | int:
    """Parse a token: `#17` is the token with id 17; any other text is the token's text.

    An id of more than 18 digits is cut to the first 18, which is still larger than any vocabulary.
    """
    if len(text) > 1 and text[0] == "#" and text[1:].isascii() and text[1:].isdigit():
        return int(text[1:].lstrip("0")[:18] or "0")
    return text


def parse_optional_token(text: str | None) -> str | int | None:
    """Parse a token as `parse_token` does; None stays None."""
    return None if text is None else parse_token(text)


class StrictModel(BaseModel):
    """A request body in which unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


class EditRequest(StrictModel):
    """A change to a memory's coefficient or a head during the forward pass."""

    target: Literal["coefficient", "head"] = "coefficient"
    action: Literal["set", "scale", "add"]
    layer: int = Field(ge=0, le=LARGEST)
    index: int = Field(ge=0, le=LARGEST)
    value: Finite
    positions: (
        Literal["all", "last"] | Annotated[list[Annotated[int, Field(ge=-4096, le=65536)]], Field(max_length=4096)]
    ) = "all"


EditList = Annotated[list[EditRequest], Field(max_length=MAX_EDITS)]


class PromptRequest(StrictModel):
    """A prompt, with edits or without."""

    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    edits: EditList = Field(default_factory=list[EditRequest])

    def library_edits(self) -> list[Edit]:
        """Return the edits as `unembed.Edit` objects."""
        return [Edit.from_dict(edit.model_dump()) for edit in self.edits]

    def register(self, state: ServerState) -> str:
        """Store the prompt and its edits, and return their id."""
        return state.register_prompt(self.prompt, self.library_edits())

    def trace(self, state: ServerState) -> Trace:
        """Return the trace of the prompt under its edits; call it only on the model's thread."""
        return state.trace(self.prompt, self.library_edits())


class TraceRequest(PromptRequest):
    """A prompt to trace, and the number of top tokens at each layer and position."""

    top: int = Field(default=5, ge=1, le=10)


class CompareRequest(PromptRequest):
    """A prompt to continue with and without its edits, and the sampling options."""

    max_new_tokens: int = Field(30, ge=1, le=200)
    seed: int | None = Field(None, ge=0, le=LARGEST)
    temperature: float = Field(1.0, gt=0, le=10, allow_inf_nan=False)
    top_k: int | None = Field(50, ge=1, le=LARGEST)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)


class SamplesRequest(PromptRequest):
    """A prompt to continue several times without and with its edits."""

    samples: int = Field(20, ge=2, le=64)
    max_new_tokens: int = Field(10, ge=1, le=60)
    seed: int = Field(0, ge=0, le=LARGEST)


class QuestionRequest(PromptRequest):
    """A prompt, a position, and the token to explain; by default, the prediction compared with the runner-up."""

    position: int = Field(-1, ge=-LARGEST, le=LARGEST)
    token: str | None = Field(None, max_length=200)
    against: str | None = Field(None, max_length=200)
    alone: bool = False

    def question(self, trace: Trace) -> Question:
        """Return which token to explain at the position, and which to compare it with."""
        token, against = parse_optional_token(self.token), parse_optional_token(self.against)
        return trace.question(token, against, self.position, alone=self.alone)


class FlowRequest(QuestionRequest):
    """A prediction whose circuit is to be drawn; `edits` are ignored."""

    other: str | None = Field(
        None, max_length=4000, description="a similar prompt on which the model behaves differently; null: found"
    )
    unpaired: bool = Field(False, description="explain the prompt without another prompt")
    max_nodes: int = Field(100, ge=1, le=1000)


class LayerAndIndex(StrictModel):
    """A memory (FFN neuron) or a head, by its layer and its number in the layer."""

    layer: int = Field(ge=0, le=LARGEST)
    index: int = Field(ge=0, le=LARGEST)


class Part(LayerAndIndex):
    """A head or memory at a position."""

    part: Literal["head", "memory"]
    at: int = Field(ge=0, le=LARGEST)


class WithoutRequest(QuestionRequest, Part):
    """A prediction, and one head or memory at a position to ablate."""

    other: str | None = Field(None, max_length=4000, description="a prompt whose activation replaces it; null: 0 does")


class GroupRequest(QuestionRequest):
    """A prediction, and heads and memories to change together."""

    parts: list[Part] = Field(min_length=1, max_length=200)
    factor: float = Field(0.0, ge=-100, le=100, description="the factor by which they are multiplied; 0: off")
    other: str | None = Field(None, max_length=4000, description="a prompt whose activations replace them instead")


class TwoPrompts(StrictModel):
    """A prompt on which the model shows a behaviour, one on which it does not, and the two tokens to compare."""

    clean: str = Field(min_length=1, max_length=4000)
    corrupted: str = Field(min_length=1, max_length=4000)
    token: str | None = Field(None, max_length=200, description="null: the clean prompt's prediction")
    against: str | None = Field(None, max_length=200, description="null: the corrupted prompt's prediction")

    def tokens(self) -> tuple[str | int | None, str | int | None]:
        """Return the two tokens as text, id or None."""
        return parse_optional_token(self.token), parse_optional_token(self.against)


class PatchingRequest(TwoPrompts):
    """The activations to patch, one at a time, and the direction: into the corrupted or the clean run."""

    point: Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "coefficients"] = "resid_pre"
    direction: Literal["denoising", "noising"] = "denoising"
    layer: int | None = Field(None, ge=0, le=LARGEST, description="the only layer that is patched; null: all layers")
    position: int | None = Field(
        None, ge=0, le=LARGEST, description="a position of the patched prompt; null: all positions"
    )
    top: int = Field(10, ge=1, le=50, description="number of memories at each layer and position")


class PatchedContinuationRequest(StrictModel):
    """One activation to patch, and the number of tokens to generate."""

    clean: str = Field(min_length=1, max_length=4000)
    corrupted: str = Field(min_length=1, max_length=4000)
    point: Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "coefficients"] = "resid_pre"
    direction: Literal["denoising", "noising"] = "denoising"
    layer: int = Field(ge=0, le=LARGEST)
    position: int | None = Field(None, ge=0, le=LARGEST)
    index: int | None = Field(None, ge=0, le=LARGEST)
    max_new_tokens: int = Field(12, ge=1, le=40)


class ScoreTermsRequest(StrictModel):
    """A prompt and two of its positions. There are no edits: the terms are computed for the unedited model."""

    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    destination: int = Field(ge=0, le=LARGEST)
    source: int = Field(ge=0, le=LARGEST)


class HeadExamplesRequest(StrictModel):
    """How much of the corpus to search for examples."""

    windows: int = Field(32, ge=1, le=64)
    length: int = Field(128, ge=2, le=256, description="largest number of tokens in a window")


class LabelRequest(LayerAndIndex):
    """A name for a memory or an attention head."""

    label: LabelText
    author: AuthorName
    kind: Literal["memory", "head"] = "memory"
    note: str = Field("", max_length=4000)
    tags: list[Annotated[str, Field(max_length=80)]] = Field(default_factory=list[str], max_length=16)
    confidence: int | None = Field(None, ge=1, le=5)
    verdict: Literal["clear", "mixed", "unclear"] | None = None


class LabelNotes(BaseModel, extra="allow"):
    """The notes of a label: those fields that this package reads, and any others."""

    pattern: str | None = None
    members: list[int] = []
    made: str = ""


class ExportedLabel(BaseModel):
    """A line of a label export. Empty fields get their default; unknown fields are ignored."""

    layer: int = Field(ge=0, le=LARGEST)
    index: int = Field(ge=0, le=LARGEST)
    label: LabelText
    author: Annotated[AuthorName, BeforeValidator(lambda author: author or "?")]
    kind: Annotated[str, Field(max_length=40), BeforeValidator(lambda kind: kind or "memory")] = "memory"
    notes: Annotated[LabelNotes, BeforeValidator(lambda notes: notes or {})] = LabelNotes()
    made: Annotated[str, BeforeValidator(lambda made: made or "")] = ""


class WithdrawRequest(StrictModel):
    """The author who withdraws a label."""

    author: AuthorName


class ConceptRequest(StrictModel):
    """A name to give to several memories, and the person who gives it."""

    name: LabelText
    author: AuthorName
    members: list[LayerAndIndex] = Field(min_length=1, max_length=1000)


class PatternRequest(StrictModel):
    """A pattern that an annotator found in the texts or tokens of an item in the annotation queue."""

    label: LabelText
    kind: str = Field("", max_length=40)
    members: list[Annotated[int, Field(ge=0, le=1000)]] = Field(default_factory=list[int], max_length=1000)
    confidence: int | None = Field(default=None, ge=1, le=5)

    def confidence_note(self) -> dict[str, int]:
        """Return the annotator's confidence as a dict, to store in the label's notes; empty if none was given."""
        return {} if self.confidence is None else {"confidence": self.confidence}


class AnnotationRequest(StrictModel):
    """The patterns that an annotator found in one item of the annotation queue; empty if the item has no pattern."""

    what: Literal["key", "value"]
    number: int = Field(ge=0, le=LARGEST)
    author: AuthorName
    seed: int = Field(0, ge=0, le=LARGEST)
    per_layer: int = Field(10, ge=1, le=100)
    random_per_layer: int = Field(5, ge=0, le=100)
    patterns: list[PatternRequest] = Field(default_factory=list[PatternRequest], max_length=12)


class ImportRequest(StrictModel):
    """Labels to import, in the format of the export: one JSON object per line."""

    jsonl: str = Field(max_length=8_000_000)


class WordsRequest(StrictModel):
    """Words to promote and words to suppress, separated by commas."""

    promote: str = Field("", max_length=400)
    suppress: str = Field("", max_length=400)
    values: int = Field(2, ge=1, le=20)
    to: Finite = 3.0
    by: Finite = 0.0


class SuppressRequest(PromptRequest):
    """Prompts to continue with and without edits, and the settings of the continuations and the perplexity."""

    further: list[Annotated[str, Field(min_length=1, max_length=4000)]] = Field(
        default_factory=list[str], max_length=7, description="prompts after the first"
    )
    samples: int = Field(4, ge=1, le=16)
    max_new_tokens: int = Field(20, ge=1, le=60)
    seed: int = Field(0, ge=0, le=LARGEST)
    cost_tokens: int = Field(1024, ge=64, le=8192)


class EarlyExitRequest(StrictModel):
    """A prompt, and the early-exit rule to apply at its positions."""

    prompt: str = Field(min_length=1, max_length=4000)
    method: Literal["margin", "entropy", "agreement"] = "margin"
    threshold: float | None = Field(default=None, allow_inf_nan=False, description="null: no token exits early")


class PresetEdit(EditRequest):
    """An edit in the page's list of edits; the user may have switched it off."""

    on: bool = True


class PresetRequest(StrictModel):
    """Edits, and the name under which to save them."""

    name: str = Field(min_length=1, max_length=80, pattern=r"\S")
    edits: list[PresetEdit] = Field(min_length=1, max_length=MAX_EDITS)


class SavedAddress(StrictModel):
    """A view of the page: the part of its URL from `#/` on."""

    address: str = Field(min_length=2, max_length=200_000, pattern=r"^#/[\x21-\x7e]*$")

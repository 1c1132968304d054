"""What a page may ask, typed and bounded; nothing else reaches the library."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from unembed.server.state import MAX_EDITS, MAX_PROMPT

LARGEST = 1_000_000
"""No layer, index or position is beyond it: what SQLite, Arrow and torch take alike."""

TraceId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$", description="as POST /traces returned it")]
LayerNumber = Annotated[int, Path(ge=0, le=LARGEST, description="a layer, from 0")]
Index = Annotated[int, Path(ge=0, le=LARGEST, description="a memory or head of the layer, from 0")]
Position = Annotated[int, Query(ge=-LARGEST, le=LARGEST, description="from 0; negative from the end")]
Token = Annotated[str | None, Query(max_length=200, description="a token's text, or #id")]
Basis = Annotated[Literal["raw", "final", "frozen"], Query(description="how the final norm is treated")]
Top = Annotated[int, Query(ge=1, le=50)]
Client = Annotated[str, Header(alias="x-client", max_length=64, description="which page asks: newest wins within it")]


class EditAsked(BaseModel):
    """One change to a run."""

    model_config = ConfigDict(extra="forbid")
    target: Literal["coefficient", "head"] = "coefficient"
    action: Literal["set", "scale", "add"]
    layer: int = Field(ge=0, le=LARGEST)
    index: int = Field(ge=0, le=LARGEST)
    value: float = Field(ge=-1e6, le=1e6, allow_inf_nan=False)
    positions: (
        Literal["all", "last"] | Annotated[list[Annotated[int, Field(ge=-4096, le=65536)]], Field(max_length=4096)]
    ) = "all"

    def edit(self) -> Any:
        """The library's edit."""
        import unembed

        return unembed.Edit.from_dict(self.model_dump())


class PromptAsked(BaseModel):
    """A prompt, with edits or without."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    edits: list[EditAsked] = Field(default_factory=list, max_length=MAX_EDITS)


class TraceAsked(PromptAsked):
    """What POST /traces takes."""

    top: int = Field(default=5, ge=1, le=10)


def token_of(text: str | None) -> str | int | None:
    """`#17` is the token with id 17; all else is a token's text."""
    if text is not None and len(text) > 1 and text[0] == "#" and text[1:].isascii() and text[1:].isdigit():
        return int(text[1:][:9])
    return text

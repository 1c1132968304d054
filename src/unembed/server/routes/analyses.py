"""Routes for the analyses of `unembed.analyses`: a list of all, and a route to run each."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter as ParameterOf
from inspect import Signature
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from unembed import Edit, Index, LanguageModel
from unembed.analyses import Cost, Listing, Needs, listings
from unembed.document import Answer
from unembed.jacobian import lens_identity
from unembed.options import Parameter
from unembed.results import Table
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.state import MAX_PROMPT, Pool, ServerState

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool, "text": str}
_ON: dict[Cost, Pool] = {Cost.INSTANT: "model", Cost.SECONDS: "long", Cost.MINUTES: "long"}


def declared_routes() -> Routes:
    """Return `GET /analyses`, and `POST /analyses/NAME` for each analysis of this package and of other packages.

    Analyses that require a path, or that work on files without a model, have no route.
    """
    answered = [
        one
        for one in listings()
        if one.needs is not Needs.NOTHING and not any(p.required and _names_a_file(p) for p in one.parameters)
    ]
    routes, requests = Routes("analyses"), {listing.name: _request(listing) for listing in answered}

    @routes.get("/analyses")
    async def get_analyses() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """All analyses, each with its help text and the JSON schema of its request."""
        rows = [
            {
                "name": one.name,
                "path": f"/api/v1/analyses/{_slug(one)}",
                "help": one.help,
                "needs": one.needs,
                "cost": one.cost,
                "source": one.source,
                "request": requests[one.name].model_json_schema(),
            }
            for one in answered
        ]
        return {"analyses": rows}

    for listing in answered:
        _add(routes, listing, requests[listing.name])
    return routes


def _add(routes: Routes, listing: Listing, request: type[BaseModel]) -> None:
    def answer(state: ServerState, query: BaseModel) -> dict[str, Any]:
        found = listing.load().function(_subject(listing.needs, state), **_arguments(listing, query, state))
        if isinstance(found, Answer):
            return found.to_dict(f"unembed.{listing.name.split()[0]}/1")
        return (found if isinstance(found, Table) else found.to_table()).to_dict()

    answer.__name__, answer.__doc__ = f"post_{_slug(listing)}".replace("-", "_"), listing.help
    given = {"state": r.State, "query": request}
    vars(answer)["__signature__"] = Signature(
        [ParameterOf(name, ParameterOf.KEYWORD_ONLY, annotation=kind) for name, kind in given.items()]
    )
    routes.answer(f"POST /analyses/{_slug(listing)}", listing.name, on=_ON[listing.cost])(answer)


def _slug(listing: Listing) -> str:
    return listing.name.replace(" ", "-")


def _subject(needs: Needs, state: ServerState) -> Any:
    """Return the first argument of an analysis's function: the server's index, its circuits, or its model."""
    match needs:
        case Needs.INDEX | Needs.FILES_OF_INDEX:
            return state.require_index()
        case Needs.CIRCUITS:
            return state.circuits
        case Needs.UNOPENED:
            return _OpenModel(state)
        case _:
            return state.lm


@dataclass(frozen=True)
class _OpenModel:
    """The server's loaded model, as a `models.UnopenedModel`."""

    state: ServerState
    known: None = None
    is_as_saved: bool = True

    @property
    def name(self) -> str:
        return self.state.lm.name

    @property
    def lens_identity(self) -> str | None:
        """A hash that identifies the model's lens; None without a lens."""
        return lens_identity(self.state.lm)

    def open(self) -> LanguageModel:
        """Return the model."""
        return self.state.lm


@dataclass(frozen=True)
class _OpenIndex:
    """The server's index, as an `options.IndexOnNeed` that never builds an index."""

    state: ServerState
    is_chosen: bool = False

    def __call__(self, *, build: bool = True, opened: bool = True) -> Index | None:
        """Return the index; None if the server has none."""
        return self.state.index


def _request(listing: Listing) -> type[BaseModel]:
    """Make the pydantic model of a request. Options with paths are left out: a page may not open files."""
    fields = {one.name: _field(one) for one in listing.parameters if _is_asked_for(one)}
    name = "".join(word.capitalize() for word in _slug(listing).split("-"))
    make: Any = create_model  # its type annotations do not support fields that are computed
    return make(name, __base__=r.StrictModel, **fields)


def _is_asked_for(parameter: Parameter) -> bool:
    return parameter.kind in ("edits", "prompts") if parameter.option.given else not _names_a_file(parameter)


def _names_a_file(parameter: Parameter) -> bool:
    return parameter.kind == "path" or parameter.name == "corpus"


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Return the pydantic field of an option: its type with bounds, and its default."""
    option = parameter.option
    if parameter.kind == "edits":
        return r.EditList, Field(default_factory=list, description=option.help)
    if parameter.kind == "prompts":
        text = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
        return Annotated[list[text], Field(min_length=1, max_length=100)], Field(description=option.help)
    if parameter.choices:
        kind: Any = Literal[*parameter.choices]
    else:
        bounds: dict[str, Any] = {}
        if parameter.kind in ("int", "float"):
            low, high = option.low, option.high
            bounds = {"ge": -r.LARGEST if low is None else low, "le": r.LARGEST if high is None else high}
        elif parameter.kind in ("str", "text"):
            bounds = {"max_length": MAX_PROMPT}
        kind = Annotated[_TYPES[parameter.kind], Field(**bounds)]
    if parameter.repeated:
        kind = Annotated[list[kind], Field(max_length=1000)]
    if parameter.required:
        return kind, Field(description=option.help)
    # The default of an option that is parsed from text may be a value of another type, which a request cannot contain.
    # So the request's default is None, which means that the argument is not passed to the function.
    default = None if parameter.kind == "text" else parameter.default
    return kind | None if default is None else kind, Field(default=default, description=option.help)


def _arguments(listing: Listing, query: BaseModel, state: ServerState) -> dict[str, Any]:
    """Return the keyword arguments of an analysis's function, without those that the request omits."""
    given: dict[str, Any] = {name: value for name, value in query if value is not None}
    parameters = {parameter.name: parameter for parameter in listing.parameters}
    for name, value in given.items():
        read = parameters[name].option.parse
        if parameters[name].kind == "edits":
            given[name] = [Edit.from_dict(edit.model_dump()) for edit in value]
            continue
        if parameters[name].repeated:
            given[name] = list(value if read is None else map(read, value))
        elif read is not None:
            given[name] = read(value)
    return given | {one.name: _OpenIndex(state) for one in listing.parameters if one.kind == "index"}

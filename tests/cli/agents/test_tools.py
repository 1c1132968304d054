"""A tool takes what its command takes, but nothing that names a file."""

import pytest
from jsonschema import Draft202012Validator

from unembed.analyses import listings
from unembed.cli.agents.tools import checked, tools
from unembed.errors import InvalidInput

MODELS = {"wren": "the default", "attn-2l": "ships with unembed"}


def test_every_analysis_without_a_required_file_is_a_tool() -> None:
    found = tools()
    for one in listings():
        needs_a_file = any(p.required and p.kind == "path" for p in one.parameters)
        assert (one.name.replace(" ", "-") in found) != needs_a_file
    assert {"trace", "explain", "lens", "value", "memories", "ablate", "patch", "circuits-head"} <= set(found)
    assert not {"serve", "mcp", "train", "models", "doctor", "index-build"} & set(found)


def test_schemas_are_valid_and_name_a_prompt_and_a_model() -> None:
    for tool in tools().values():
        schema = tool.schema(MODELS)
        Draft202012Validator.check_schema(schema)
        assert schema["properties"]["model"]["enum"] == ["wren", "attn-2l"]
        assert all(one["description"] for one in schema["properties"].values())
    trace = tools()["trace"].schema(MODELS)
    assert trace["required"] == ["prompt"] and trace["properties"]["prompt"]["type"] == "string"
    assert trace["properties"]["point"]["enum"][0] == "resid_pre" and trace["properties"]["memories"]["minimum"] == 0


def test_no_argument_names_a_file() -> None:
    for tool in tools().values():
        assert all(one.kind != "path" for one in tool.parameters.values())
        assert not {"corpus", "file", "out", "save", "html", "index", "add_vector", "edits"} & set(tool.parameters)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"promt": "a"}, "'promt' was unexpected"), ({}, "'prompt' is a required property"),
        ({"prompt": 3}, "prompt 3 is not of type 'string'"), ({"prompt": "a", "model": "/etc"}, "not one of"),
        ({"prompt": "a", "memories": -1}, "less than the minimum"), ({"prompt": "a", "file": "/etc/passwd"}, "file"),
    ],
)  # fmt: skip
def test_other_arguments_are_refused_with_those_that_there_are(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        checked(tools()["trace"], arguments, MODELS)
    assert "Give only arguments of these: prompt, " in str(refused.value)


def test_a_dash_is_not_standard_input() -> None:
    with pytest.raises(InvalidInput, match="which a tool does not have"):
        checked(tools()["trace"], {"prompt": "-"}, MODELS)


def test_every_tool_says_when_its_answer_is_not_to_be_trusted() -> None:
    for tool in tools().values():
        caution = tool.command.help.split("\n\nCaution: ")
        assert len(caution) == 2 and caution[1].count(".") >= 1, tool.name

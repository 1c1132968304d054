"""`unembed circuit` on the shipped model: subject-verb agreement, a counterfactual that is found, files of pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unembed
from unembed.circuit_graph import circuit
from unembed.circuit_graph.answer import circuit_answer, read_group
from unembed.circuit_graph.build import circuit_of
from unembed.circuit_graph.cases import read_case
from unembed.circuit_graph.in_words import CircuitWords
from unembed.circuit_graph.in_words import test_in_words as in_words
from unembed.circuit_graph.one_token_change import LIKELY, with_counterfactual
from unembed.circuit_graph.pair_files import read_pairs, usable_cases
from unembed.circuit_graph.removal_of_each import Removal
from unembed.circuit_graph.tested_picture import picture
from unembed.cli.commands import app
from unembed.dictionaries import Dictionary, save_dictionary
from unembed.errors import InvalidInput
from unembed.gallery import MemoryDescriptions
from unembed.language_model import LanguageModel
from unembed.models.named_tokens import MovedTokens
from unembed.results import Table, format_number
from unembed.results.result_files import save_result

SVA = Path(__file__).parents[1] / "data" / "sva"


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return unembed.load()


def test_ten_memories_carry_subject_verb_agreement_on_pairs_they_were_not_found_on(wren: LanguageModel) -> None:
    """Arora et al. 2026 find about a hundred in larger models; the shipped one needs ten of 40,960."""
    train, _ = usable_cases(wren, read_pairs(SVA / "simple_train.jsonl"))
    test, left_out = usable_cases(wren, read_pairs(SVA / "simple_test.jsonl"))
    assert len(test) > 25 and left_out < 15
    graph = circuit(wren, pairs=[(c.prompt, c.counterfactual, c.token, c.against) for c in train[:40]], max_nodes=20)
    pairs = [(c.prompt, c.counterfactual, c.token, c.against) for c in test]
    row = graph.test(pairs, sizes=(10,)).rows().__next__()
    assert row["faithfulness"] > 0.8 and row["complement"] < 0.2
    assert row["faithfulness_low"] < row["faithfulness"] < row["faithfulness_high"]
    assert abs(row["random"]) < 0.02 and row["random_complement"] > 0.98 and row["random_does_as_well"] is False
    assert "pairs that it was not found on" in in_words(graph.tested(pairs, (10,)), held_out=True)


def test_a_counterfactual_changes_one_token_and_the_answer(wren: LanguageModel) -> None:
    case = with_counterfactual(wren, read_case(wren, "The dogs", None, " are", " is"))
    assert case.counterfactual is not None
    assert sum(a != b for a, b in zip(case.prompt, case.counterfactual, strict=True)) == 1
    logits = wren.run(list(case.counterfactual)).logits[0, -1]
    assert logits[wren.single_token(" is")] > logits[wren.single_token(" are")]


def test_a_memory_takes_its_label_from_an_atlas_at_the_sign_of_its_coefficient(wren: LanguageModel) -> None:
    case = read_case(wren, "The dogs", "The dog", " are", " is")
    plain = circuit_of(wren, (case,), 20)
    named = [row for row in plain.nodes.rows() if row["kind"] == "memory"]
    here = wren.run("The dogs", capture=("coefficients",))["coefficients"][:, 0]
    poles = ["negative" if here[row["layer"], row["position"], row["index"]] < 0 else "positive" for row in named]
    first, second = named[:2]
    atlas = MemoryDescriptions(
        of_atlas={
            (first["layer"], first["index"], poles[0]): "after nouns: raises 'are', which promotes \"x\"",
            (second["layer"], second["index"], {"negative": "positive", "positive": "negative"}[poles[1]]): "never",
        }
    )
    graph = circuit_of(wren, (case,), 20, atlas=atlas)
    labels, before = (dict(zip(one.nodes["name"], one.nodes["label"], strict=True)) for one in (graph, plain))
    assert labels.pop(first["name"]) == "after nouns: raises 'are', which promotes \"x\" (atlas); " + before.pop(
        first["name"]
    )
    assert labels == before
    row = next(row for row in graph.nodes.rows() if row["name"] == first["name"])
    assert row["atlas"] == "after nouns: raises 'are', which promotes \"x\"" and len(row["promoted_tokens"]) == 3
    columns = {n: c for n, c in graph.nodes.columns.items() if n not in ("reads", "promoted_tokens", "atlas")}
    older = replace(graph, nodes=Table(graph.nodes.title, columns, graph.provenance))  # as files of unembed 0.1 have it
    assert list(older.nodes.rows()) == list(graph.nodes.rows())
    words, old = CircuitWords(graph), CircuitWords(plain)
    assert words.chain(6).columns == old.chain(6).columns
    assert len(words.of_atlas(words.chain(20))) == 1 and not old.of_atlas(old.chain(20))


def test_an_atlas_of_another_model_is_refused(wren: LanguageModel) -> None:
    with pytest.raises(InvalidInput, match="smollm2"):
        circuit_answer(wren, "The dogs", atlas=Path(__file__).parents[2] / "docs" / "atlas" / "smollm2")


def test_the_words_say_what_the_graph_holds(wren: LanguageModel) -> None:
    graph = circuit(wren, "The dogs", " are", " is", "The dog", max_nodes=20)
    words = CircuitWords(graph)
    chain = words.chain(6)
    assert len(chain) == 6 and chain.column_names == ["node", "at", "reads", "promotes", "relevance", "directly"]
    assert chain["relevance"] == graph.nodes["relevance"][:6]
    name = graph.nodes["name"][0]
    direct = {e["source"]: e["weight"] for e in graph.edges.rows() if e["target"] == "metric"}
    assert chain["directly"][0] == direct[name]
    leads = f'Why "·are" leads "·is" by {format_number(graph.metric)} logits after "The dogs"'
    assert words.subject == f'{leads}, but trails it by {format_number(-graph.counterfactual_metric)} after "The dog"'
    assert f"({name.split('@')[0]})" in words.first()
    whole = graph.metric - graph.counterfactual_metric
    passes = (
        f"{format_number(graph.nodes['relevance'][0])} of the {format_number(whole)} logits between the two prompts"
    )
    assert f"{passes} pass through {name.split('@')[0]}" in words.columns(chain)
    assert "A node is an attention head or a memory (FFN neuron) at one token." in words.columns(chain)
    assert "measured" not in words.columns(chain)


def test_without_it_is_what_the_model_predicts_with_the_head_of_the_counterfactual(wren: LanguageModel) -> None:
    answer = circuit_answer(wren, "The dogs", token=" are", against=" is", against_prompt="The dog", max_nodes=20)
    row = next(row for row in answer.sections[0].exhibits[0].table.rows() if row["node"].startswith("L0H"))
    head = int(row["node"].removeprefix("L0H"))
    mixed: list[torch.Tensor] = []

    def recorded(_module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Record what all heads give to the output projection, then put the head's first record into the last token."""
        mixed.append(given[0])
        changed, columns = given[0].clone(), slice(head * wren.d_head, (head + 1) * wren.d_head)
        changed[0, -1, columns] = mixed[0][0, -1, columns]
        return (changed,)

    hook = wren.hf.transformer.h[0].attn.c_proj.register_forward_pre_hook(recorded)
    with hook, torch.no_grad():
        wren.hf(wren.encode("The dog"))
        logits = wren.hf(wren.encode("The dogs")).logits[0, -1]
    metric = float(logits[wren.single_token(" are")] - logits[wren.single_token(" is")])
    assert row["without_it"] == pytest.approx(metric, abs=1e-3)
    whole = wren.circuit("The dogs", " are", " is", "The dog", max_nodes=20).metric
    assert row["effect"] == pytest.approx(whole - metric, abs=1e-3)
    leads = "·are" if metric >= 0 else "·is"
    assert (
        f'"{leads}" leads by {format_number(abs(metric))}: an effect of {format_number(row["effect"])} '
        in answer.sections[0].text[0]
        or head != 1
    )


@pytest.mark.parametrize(
    ("prompt", "against", "counterfactual", "expected"),
    [
        ("The dog", " is", "The dogs", 'Why "·are" trails "·is" by {}, but leads it by {} after "The dogs"'),
        ("The dogs", " is", "The cats", 'Why "·are" leads "·is" by {}, and by {} after "The cats"'),
        ("The dogs", None, "The dog", 'Why "·are" has a logit of {}, and one of {} after "The dog"'),
        ("The dogs", None, None, 'Why "·are" has a logit of {}'),
    ],
)
def test_the_first_line_says_which_answer_leads(
    wren: LanguageModel, prompt: str, against: str | None, counterfactual: str | None, expected: str
) -> None:
    graph = circuit(wren, prompt, " are", against, counterfactual, max_nodes=2)
    logits = "" if against is None else " logits"
    other = graph.counterfactual_metric or 0.0
    ours = f'{format_number(abs(graph.metric))}{logits} after "{prompt}"', f"{format_number(abs(other))}"
    assert CircuitWords(graph).subject == expected.format(*ours[: expected.count("{}")])


def test_without_a_counterfactual_the_test_says_what_removing_does(wren: LanguageModel) -> None:
    answer = circuit_answer(wren, "The dogs", token=" are", against=" is", alone=True, max_nodes=10)
    text = " ".join(answer.sections[0].text)
    assert "their mean over a text" in text and "becomes" in text


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (MovedTokens((" are", " were"), (" is", " was")), "raises ·are and ·were, and lowers ·is."),
        (
            MovedTokens((" were", " have"), (" is", " was")),
            "raises ·were and ·have, lowers ·is, and hardly changes ·are.",
        ),
        (MovedTokens((" is", " was"), (" are", " were")), "raises ·is and ·was, and lowers ·are."),
        (MovedTokens((" were",), (" has",)), "raises ·were, and hardly changes ·are and ·is."),
        (MovedTokens(), " and hardly changes ·are and ·is."),
    ],
)
def test_the_sentence_of_a_node_says_what_it_does_to_both_answers(
    wren: LanguageModel, tokens: MovedTokens, expected: str
) -> None:
    graph = wren.circuit("The dogs", " are", " is", max_nodes=10)
    words = CircuitWords(graph)
    first = next(row for row in words.first_nodes(10) if row["kind"] == "head")
    assert expected in words._does(first, Removal(0.0, (0.5, 0.1), tokens))


def test_the_command_prints_the_chain_and_the_test(tmp_path: Path) -> None:
    line = ["circuit", "The dogs", "--token", " are", "--against", " is", "--out", str(tmp_path / "graph")]
    printed = CliRunner().invoke(app, line, env={"COLUMNS": "100"})
    assert printed.exit_code == 0, printed.output
    words = " ".join(printed.output.split())
    assert "into the other prompt's run brings" in words and "If its output is replaced by its output on" in words
    assert "Raises, lowers and effect are measured in the model" in words
    # A title of two lines, the head and the line of the table, four nodes, what the first does, what columns are, and
    # the test; then the provenance.
    lines = [line for line in printed.output.splitlines() if line.strip()]
    assert len(lines[: next(i for i, line in enumerate(lines) if line.startswith("wren"))]) <= 20
    assert unembed.open_result(tmp_path / "graph").metric == pytest.approx(
        unembed.load().circuit("The dogs", " are", " is").metric, abs=1e-5
    )


def test_a_graph_is_opened_and_its_groups_are_changed(tmp_path: Path) -> None:
    graph = circuit(unembed.load(), "The dogs", " are", " is", "The dog", max_nodes=10).with_group("own", ["L0H1"])
    graph.save(tmp_path / "graph")
    line = ["circuit", "--graph", str(tmp_path / "graph"), "--group", "two=L0H1,L3M828", "--change", "patch", "--json"]
    printed = CliRunner().invoke(app, [*line, "--group-by", "role", "--sizes", "5"])
    assert printed.exit_code == 0, printed.output
    tables = json.loads(printed.stdout)["tables"]
    assert tables["test"]["rows"][0]["nodes"] == 5
    rows = {row["changed"]: row for row in tables["groups"]["rows"]}
    assert list(rows)[:3] == ["nothing", "own", "two"] and len(rows) > 3
    assert rows["two"]["metric"] < rows["own"]["metric"] < rows["nothing"]["metric"]
    expected = graph.intervene("patch")["metric"]
    assert [rows["nothing"]["metric"], rows["own"]["metric"]] == pytest.approx(expected, abs=1e-4)


def test_groups_and_files_that_are_not_of_the_form_are_refused(wren: LanguageModel, tmp_path: Path) -> None:
    assert read_group("a b = L0H1, L3M828@1") == ("a b", ("L0H1", "L3M828@1"))
    for text in ("France", "=L0H1", "France=", "France= ,"):
        with pytest.raises(InvalidInput, match="not of the form"):
            read_group(text)
    save_result(circuit(wren, "The dogs", " are", max_nodes=5).nodes, tmp_path / "table")
    with pytest.raises(InvalidInput, match="it contains a Table"):
        circuit_answer(wren, graph=tmp_path / "table")


def test_files_of_pairs_are_split_into_found_and_tested(tmp_path: Path) -> None:
    lines = (SVA / "simple_train.jsonl").read_text().splitlines()[:16]
    ours = [json.dumps(["The dogs", "The dog", " are", " is"]), json.dumps(["The dogs", "The old dog", " are", " is"])]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([*lines, *ours]) + "\n")
    printed = CliRunner().invoke(app, ["circuit", "--pairs", str(path), "--json", "--max-nodes", "10"])
    assert printed.exit_code == 0, printed.output
    view = json.loads(printed.stdout)
    assert {"chain", "nodes", "edges", "test_memories", "test_all"} == set(view["tables"])
    assert any("left out" in text for text in view["text"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no lines"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"prompt": "The"}', "no prompt, counterfactual"),
        ("[1, 2]", "no prompt"),
    ],
)
def test_files_that_are_no_pairs_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        read_pairs(path)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_pairs(tmp_path / "nothing")


def test_options_that_exclude_each_other_are_refused(wren: LanguageModel) -> None:
    for more in ({"prompt": "The dogs"}, {"token": " are"}, {"graph": SVA / "graph"}):
        with pytest.raises(InvalidInput, match="found for only one of them"):
            circuit_answer(wren, pairs=SVA / "simple_train.jsonl", **more)
    with pytest.raises(InvalidInput, match="needs a prompt, --pairs or --graph"):
        circuit_answer(wren)
    with pytest.raises(InvalidInput, match="1 pairs, all refused"):
        usable_cases(wren, [("The dogs", "The dog", " are the", " is")])


def test_a_page_shows_the_picture_and_a_file_is_for_other_viewers(tmp_path: Path) -> None:
    page, viewer = tmp_path / "dogs.html", tmp_path / "dogs.json"
    words = ["circuit", "The dogs", "--token", " are", "--against", " is", "--against-prompt", "The dog"]
    more = ["--max-nodes", "10", "--html", str(page), "--viewer", str(viewer)]
    done = CliRunner().invoke(app, [*words, *more])
    assert done.exit_code == 0, done.output
    text = page.read_text("utf-8")
    assert '"schema": "unembed.flow/1"' in text and text.index("attachShadow") < text.index("The circuit</h2>")
    assert json.loads(viewer.read_text("utf-8"))["metadata"]["prompt"] == "The dogs"
    refused = CliRunner().invoke(app, ["circuit", "--pairs", str(viewer), "--viewer", str(viewer)])
    assert refused.exit_code == 1 and "a viewer shows one prompt" in refused.output


def test_features_of_a_dictionary_are_nodes_on_the_command_line(wren: LanguageModel, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    features = 64
    W_enc = torch.randn(wren.d_model, features, generator=generator) / wren.d_model**0.5
    W_dec = torch.randn(features, wren.d_model, generator=generator) / 8
    nothing = torch.zeros(features), torch.zeros(wren.d_model)
    made = Dictionary(W_enc, nothing[0], (W_dec,), nothing[1], "relu", layer=4, reads="mlp_in", writes="mlp_out")
    save_dictionary(made, tmp_path / "features")
    asked = ["circuit", "The dogs", "--token", " are", "--against", " is", "--against-prompt", "The dog"]
    asked += ["--dictionary", str(tmp_path / "features"), "--sizes", "5", "--max-nodes", "300"]
    out = CliRunner().invoke(app, [*asked, "--json", "--out", str(tmp_path / "graph")])
    assert out.exit_code == 0, out.output
    names = [row["name"] for row in json.loads(out.stdout)["tables"]["nodes"]["rows"]]
    assert any(name.startswith("L4F") for name in names) and not any(name.startswith("L4M") for name in names)
    graph = circuit(wren, "The dogs", " are", " is", "The dog", max_nodes=300, dictionary=wren.attach(made))
    assert names[:20] == graph.nodes["name"][:20]
    again = CliRunner().invoke(app, ["circuit", "--graph", str(tmp_path / "graph"), "--sizes", "5"])
    assert again.exit_code == 1 and "without their dictionary" in again.stderr


def test_a_picture_has_features_with_what_the_model_does_without_them(wren: LanguageModel) -> None:
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(wren.d_model, 32, generator=generator) / wren.d_model**0.5
    part = Dictionary(
        W,
        torch.zeros(32),
        (W.T.clone() * 4,),
        torch.zeros(wren.d_model),
        "relu",
        layer=5,
        reads="mlp_in",
        writes="mlp_out",
    )
    attached = wren.attach(part)
    view = picture(circuit(wren, "The dogs", " are", max_nodes=400, dictionary=attached), test=())
    assert view.without == "0 in its place"
    shown = [node for node in view.nodes if node.kind == "feature" and node.removed is not None]
    features, compared = attached.features("The dogs", 5)[0], 0
    for node in shown:
        assert node.index is not None and node.removed is not None
        if [i for i, f in enumerate(features[:, node.index].tolist()) if f > 0] != [node.position]:
            continue  # an edit is of every position
        with attached.edited([unembed.Edit("feature", "scale", 5, node.index, 0.0)]):
            logits = wren.run("The dogs").logits[0, -1]
        assert node.removed.metric == pytest.approx(float(logits[wren.single_token(" are")]), abs=1e-4)
        compared += 1
    assert compared > 1


def test_shared_patterns_are_an_option(wren: LanguageModel) -> None:
    asked = ["circuit", "The dogs", "--token", " are", "--alone", "--set-to", "zero", "--sizes", "5", "--json"]
    found = [CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--qk", "shared"])]
    constant, shared = (json.loads(one.stdout)["tables"]["nodes"]["rows"] for one in found)
    assert constant != shared
    assert any("patterns" in row["label"] for row in shared if row["kind"] == "bias")
    graph = circuit(wren, "The dogs", " are", qk="shared")
    assert [row["name"] for row in shared][:10] == graph.nodes["name"][:10]


def test_a_token_is_replaced_by_one_that_is_written_alike(wren: LanguageModel) -> None:
    case = with_counterfactual(wren, read_case(wren, "The dogs", None, " are", " is"))
    assert case.counterfactual is not None
    (own, other), *more = [
        (a, b) for a, b in zip(*map(wren.token_strings, (case.prompt, case.counterfactual)), strict=True) if a != b
    ]
    assert not more and own[:1].isspace() == other[:1].isspace()
    assert own.strip()[:1].isupper() == other.strip()[:1].isupper() and own.strip().isalpha() == other.strip().isalpha()


def test_another_answer_is_chosen_with_the_change_that_makes_it_likely(wren: LanguageModel) -> None:
    case = with_counterfactual(wren, read_case(wren, "The dogs", None, " are", None))
    assert case.counterfactual is not None and case.against not in (None, case.token)
    assert sum(a != b for a, b in zip(case.prompt, case.counterfactual, strict=True)) == 1
    before, after = (
        wren.run(list(prompt)).logits[0, -1].double().softmax(-1) for prompt in (case.prompt, case.counterfactual)
    )
    assert after[case.against] - after[case.token] >= LIKELY * before[case.token]
    # No counterfactual of the search with a given answer makes a token that is like the explained one likelier by more.
    for given in (" is", " were", " have"):
        other = with_counterfactual(wren, read_case(wren, "The dogs", None, " are", given))
        assert other.counterfactual is not None
        p = wren.run(list(other.counterfactual)).logits[0, -1].double().softmax(-1)
        assert p[other.against] - p[case.token] <= after[case.against] - after[case.token] + 1e-6


def test_no_answer_is_chosen_if_no_change_makes_one_likely(wren: LanguageModel) -> None:
    case = read_case(wren, "1, 2, 3, 4,", None, " and", None)
    assert with_counterfactual(wren, case) == case
    page = CliRunner().invoke(app, ["circuit", "1, 2, 3, 4,", "--token", " and", "--sizes", "5"])
    assert page.exit_code == 0 and "has a logit of" in page.stdout

"""Write and run the notebooks of this folder: `python examples/build.py` (needs nbformat, nbclient and ipykernel).

The cells are text here, so that changes can be reviewed; two of the notebooks contain what the cells printed.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent

SETUP = """
import torch
from IPython.display import SVG
import unembed
from unembed.document.charts import draw
from unembed.document.model import Figure
from unembed.results import Table

def picture(title, kind, provenance, across, up, **columns):
    table = Table(title, columns, provenance)
    labels = {"x_label": across, "y_label": up}
    names = tuple(name for name in columns if name != "x")
    return SVG(draw(Figure("p", title, kind, "p", "x", y=names, **labels), table, standalone=True))
"""

TUTORIAL = [
    """# One prompt, from the first token to the last logit
The tutorial as a notebook. It needs nothing but the package: `wren`, a small model, and a text come with it. In tokens, `·` is a space;
layers, memories (FFN neurons) and positions count from 0, ranks from 1.""",
    """
try:
    import unembed
except ModuleNotFoundError:
    %pip install --quiet unembed
    import unembed
""",
    """
lm = unembed.load()
trace = lm.trace("The war lasted from 1861")
trace
""",
    """The grid is a lens: the token to which the stream of each position leads, after every layer. What do the parts of the model add to the answer?""",
    """
trace.attribution(" until", against=" to", by="component")
""",
    """## What a memory promotes
A memory adds its value vector, times a coefficient, to the stream. Read in the vocabulary, the value vector is a list of tokens.""",
    """
from unembed.notebook import memory_card

memory_card(lm, 7, 985)
""",
    """## What happens without it
An attribution says what a part adds. What the model predicts without it takes a second run.""",
    """
without = lm.trace("The war lasted from 1861", edits=[unembed.set_coefficient(7, 985, to=0.0)])
for name, one in (("with", trace), ("without", without)):
    chances = one.logits().softmax(-1)
    print(f"{name:8}", *(f"{lm.decode([token])!r} {chances[token]:.0%}" for token in chances.topk(3).indices.tolist()))
""",
    """## Where two prompts differ
Each square shows how much of the answer one activation of the first prompt restores in a run on the second.""",
    """
lm.patch("The blue car and the red", "The blue sky and the red", points="resid_pre")
""",
    """## The circuit of a prediction
Heads and memories, and what each adds to the difference of two logits, on all paths. Its test: are the most relevant ones enough, and what is left without them?""",
    """
graph = lm.circuit("The dogs", " are", " is", against_prompt="The dog")
graph
""",
    """
graph.test(sizes=(10, 30))
""",
    """## The heads of the model
Each square is a head: how much it attends to the previous token, on random tokens.""",
    """
from unembed.notebook import heads_card

heads_card(unembed.circuits(lm).head_scores(n_sequences=4), "previous_token")
""",
    """## A model of your own
`unembed.load` takes a hub id, a folder, a GGUF file, or a `transformers` model in memory:
`lm = unembed.load("HuggingFaceTB/SmolLM2-135M-Instruct")`. All of the above works the same.""",
]

PREDICTION = [
    """# A prediction taken apart
Why does a model predict what it predicts? We open `wren`, the small model that ships with the package, and follow one prediction from tokens
to layers, from layers to memories and heads, and then change it.""",
    SETUP,
    """
lm = unembed.load()
prompt = "Once upon a time there was a little"
trace = lm.trace(prompt)
answer = lm.token_strings(trace.prediction[-1:])[0]
print(repr(answer))
trace
""",
    """## Where does the answer come from?
The logit lens reads the stream after every layer as if it were the last. The rank of the answer among all 16,384 tokens shows when it comes first.""",
    """
ranks = trace.ranks_of(answer)[:, -1]
for event in trace.events(position=-1):
    print(event)
picture("Rank of the answer, by layer", "line", trace.provenance, "layer", "rank",
        x=list(range(lm.n_layers)), rank=ranks.tolist())
""",
    """## Which parts of the model contribute?
The logit is a sum over everything that adds to the stream (direct logit attribution). The sum is checked against the model's own logit.""",
    """
attribution = trace.attribution(answer, by="component")
print(f"sum {attribution.total:.4f}, model {attribution.logit:.4f}, relative error {attribution.error:.1e}")
picture("Contribution of each component to the answer's logit", "bar", trace.provenance, "component", "logit",
        x=[row.label for row in attribution.rows], contribution=[float(row.contribution) for row in attribution.rows])
""",
    """
for row in trace.attribution(answer, by="memory").top(8):
    print(f"{row.label:24} {row.contribution:+.3f}")
""",
    """## What do the memories promote?
A memory (FFN neuron) adds its value, times a coefficient m, to the stream. Read through the unembedding, a value is a list of tokens that it promotes
together. These are the largest sub-updates of the last layer, each with its share of the layer's sum.""",
    """
for update in trace.sub_updates(layer=lm.n_layers - 1, top=6, token=answer):
    print(f"{update.name:8} m = {update.coefficient:6.2f}   share {update.share:5.1%}   {update.promoted[:8]}")
""",
    """## Change it
An attribution says what each part added, not what would happen without it. To see that, remove the part and run again: the head that contributes
most to the answer, then the memory.""",
    """
head = max((row for row in trace.attribution(answer, by="head").rows if row.label.startswith("head")), key=lambda row: row.contribution)
memory = max((row for row in trace.attribution(answer, by="memory").rows if row.label.startswith("memory")), key=lambda row: row.contribution)
token = lm.encode(answer)[0, -1]
before = float(trace.logits()[token])
for edit, row in ((unembed.scale_head(head.layer, head.index, by=0.0), head),
                  (unembed.set_coefficient(memory.layer, memory.index, to=0.0), memory)):
    after = float(lm.trace(prompt, edits=[edit]).logits()[token])
    print(f"{row.label}: contribution {row.contribution:+.3f}; without it the logit changes by {after - before:+.3f}")
""",
    """The two numbers, direct and total effect, differ where later layers react to the removal and where the norm's scale changes. Both are right; they
answer different questions.""",
    """
for text in lm.generate(prompt, max_new_tokens=12, seed=1) + lm.generate(
        prompt, edits=[unembed.scale_head(head.layer, head.index, by=0.0)], max_new_tokens=12, seed=1):
    print(text)
""",
]

CIRCUIT = [
    """# A circuit in a two-layer model
`attn-2l` has two layers of attention and nothing else, so its logits are sums over paths through heads. We look for its induction heads,
which find an earlier occurrence of the current token and copy what followed it, first by behaviour and then in the weights alone.""",
    SETUP,
    """
lm = unembed.load("attn-2l")
circuits = unembed.circuits(lm)
scores = circuits.head_scores(seed=0)
induction = divmod(int(scores.induction.argmax()), lm.n_heads)
previous = divmod(int(scores.previous_token[0].argmax()), lm.n_heads)
print("induction head", induction, f"{scores.induction[induction]:.2f};", "previous-token head", previous,
      f"{scores.previous_token[previous]:.2f}")
provenance = lm.trace("The cat").provenance
picture("Induction score of every head, on random tokens that repeat", "bar", provenance, "head", "attention",
        x=[f"L{layer}H{h}" for layer in range(lm.n_layers) for h in range(lm.n_heads)],
        score=[float(s) for s in scores.induction.flatten()])
""",
    """## How does it find the position?
To find what *followed* the earlier occurrence, the keys of the second layer must encode the token *before* each position. A previous-token head in the
first layer writes that. In the weights this appears as K-composition, compared with random matrices of the same shapes.""",
    """
k = circuits.composition("k", baseline=True)[0, :, induction[0], induction[1]]
picture(f"K-composition of L{induction[0]}H{induction[1]} with each head of layer 0, above chance", "bar", provenance,
        "head of layer 0", "composition", x=[str(h) for h in range(lm.n_heads)], composition=[float(c) for c in k])
""",
    """
print("strongest:", int(k.argmax()), "previous-token head:", previous[1])
copying = circuits.copying_scores()
print(f"copying score of the induction head: {copying[induction]:.2f} (1: every eigenvalue of W_E W_OV W_U is positive)")
""",
    """## On a prompt
A name occurs twice, the second time only its beginning. Where does the head attend, what does the model predict, and what without the induction
heads (those with a score above 0.2)?""",
    """
prompt = "Lord Farquaad was short. The ogre laughed at Lord Far"
run = lm.run(prompt, capture=("pattern",))
pattern = run["pattern"][induction[0]][0, induction[1], -1]
tokens = lm.token_strings(run.tokens[0])
for position in pattern.topk(3).indices.tolist():
    print(f"{pattern[position]:.2f} on {tokens[position]!r}, after {tokens[position - 1]!r}")
heads = [tuple(head) for head in (scores.induction > 0.2).nonzero().tolist()]
silent = [unembed.scale_head(*head, by=0.0) for head in heads]
print("induction heads", heads)
for what, edits in (("with", []), ("without", silent)):
    print(what, "them:", lm.token_strings(lm.trace(prompt, edits=edits).logits().topk(3).indices))
""",
    """## The logits as a sum of paths
Order 2 includes every path of a two-layer model, so the sum is exact.""",
    """
expansion = circuits.expand(prompt, order=2)
print(f"{len(expansion.labels)} paths, exact: {expansion.exact}, error {expansion.error:.1e}")
norms = expansion.vectors.norm(dim=1)
for term in norms.topk(8).indices.tolist():
    print(f"{expansion.labels[term]:28} {norms[term]:.2f}")
""",
    """## Without the induction heads
Without them, random text should be more surprising when it repeats.""",
    """
generator = torch.Generator().manual_seed(0)
once = torch.randint(300, lm.d_vocab, (8, 48), generator=generator)
twice = torch.cat([once, once], dim=1)

def loss(edits=()):
    logits = lm.run(twice, edits=edits).logits
    nats = torch.nn.functional.cross_entropy(logits[:, :-1].mT, twice[:, 1:], reduction="none").mean(dim=0)
    return nats

whole, without = loss(), loss(silent)
print(f"second half: {whole[48:].mean():.2f} nats a token, without the heads {without[48:].mean():.2f}; first half {whole[:47].mean():.2f}")
picture("Loss by position; the text repeats from 48 on", "line", provenance, "position", "nats",
        x=list(range(len(whole))), whole=whole.tolist(), without_the_heads=without.tolist())
""",
]


def notebook(cells: list[str]) -> nbformat.NotebookNode:
    """Cells that begin with a line break are code, all others prose."""
    made = nbformat.v4.new_notebook()
    for number, text in enumerate(cells):
        new = nbformat.v4.new_code_cell if text.startswith("\n") else nbformat.v4.new_markdown_cell
        made.cells.append(new(text.strip(), id=f"cell-{number}"))
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


if __name__ == "__main__":
    for name, cells in (
        ("tutorial", TUTORIAL),
        ("take_a_prediction_apart", PREDICTION),
        ("a_circuit_in_attn_2l", CIRCUIT),
    ):
        made = notebook(cells)
        NotebookClient(made, timeout=300).execute()
        if name == "tutorial":  # its drawings are made where it is run: each carries what draws it
            for cell in made.cells:
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = [], None
        for cell in made.cells:  # without the warnings of libraries
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(made, HERE / f"{name}.ipynb")
        print(HERE / f"{name}.ipynb")

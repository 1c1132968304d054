"""Write the files that agents and newcomers read first: AGENTS.md, docs/llms.txt and the skill in docs/skills.

What they list (commands, when not to trust them, pages) comes from the declarations and the pages themselves.

python -m tools.agent_files
"""

from __future__ import annotations

import re
from pathlib import Path

from unembed.cli.agents.tools import Tool, tools

ROOT = Path(__file__).resolve().parents[1]
_FIRST = ("trace", "explain", "lens", "value", "memories", "ablate", "patch", "circuit", "steer")
"""Commands in the order in which a question is best begun; the rest follow as in the help."""

_AGENTS = """# Working on unembed

`unembed` shows how a transformer language model builds its prediction: FFN memories, their sub-updates in vocabulary
space, and attention circuits. This page is for agents (and people) who change it; to *use* it, read
[the skill](docs/skills/unembed/SKILL.md).

- `make run` installs it and traces a prompt; `make test` runs all tests; `make lint` checks format, types and imports.
  All three must pass before a change is finished.
- [CONTRIBUTING.md](CONTRIBUTING.md) names the files to touch for a family, an analysis, a quantity, a reducer, a scorer
  or a screen. [docs/architecture.md](docs/architecture.md) has a paragraph for each room; imports go down only.
- A test's truth comes from outside the code under test: the model's own tensors, brute force in float64, another
  library. Run the test of a module with `.venv/bin/python -m pytest tests/ROOM/test_MODULE.py`.
- Generated files are never edited by hand: `python -m tools.analyses` writes `analyses.json` and
  `docs/cli-reference.md`, `python -m tools.python_reference` writes `docs/python.md`, `python -m tools.agent_files`
  writes this page's list, `docs/llms.txt` and the skill.
- An error is one line: what failed, why, what to do. A sentence shown to a person says what was measured.

## Commands
{commands}
"""
_SKILL = """---
name: unembed
description: >-
  Explain why a language model predicts a token, what its memories (FFN neurons) and attention heads do, and what
  changes when they are edited. Use for questions about the inside of a transformer model.
---

# Ask a model how it builds its prediction

Run `unembed COMMAND --plain` (text) or `--json` (stable schemas). `--model` takes a name that `unembed models` lists, a
Hugging Face id, a folder or a GGUF file; without it the small shipped model `wren` answers. `unembed COMMAND --help`
lists the options and ends with a caution: repeat it to the person where it applies.

1. Begin with `unembed trace "PROMPT"`: its first finding is measured by removing the part it names.
2. To compare two tokens: `unembed explain "PROMPT" --against " TOKEN"`; for the parts and paths behind the difference,
   `unembed circuit "PROMPT" --token " A" --against " B"`, whose test is printed with it.
3. To test a claim about a part, change the part: `unembed ablate`, `unembed patch`, `unembed steer`.
4. What a vector "promotes" is a reading, not an effect; `unembed truth` and `unembed value --truth` compare the two.
5. Numbers come from the output, never from memory. A name such as L5M278 is memory 278 of layer 5, L23H4 head 4 of
   layer 23; layers, heads and memories count from 0, ranks from 1.

## Commands
{commands}
"""


def _first_line(tool: Tool) -> str:
    return tool.command.help.split("\n\n")[0].replace("\n", " ")


def _ordered() -> list[Tool]:
    every = tools()
    first = [every[name] for name in _FIRST]
    return [*first, *(one for one in every.values() if one not in first)]


def agents_page() -> str:
    """Return AGENTS.md."""
    rows = [f"- `unembed {one.command.words}`: {_first_line(one)}" for one in _ordered()]
    return _AGENTS.format(commands="\n".join(rows))


def skill() -> str:
    """Return the skill: what to run for which question, and when not to trust it."""
    rows: list[str] = []
    for one in _ordered():
        caution = one.command.help.split("\n\nCaution: ")[-1].replace("\n", " ")
        rows.append(f"- `{one.command.example or f'unembed {one.command.words}'}`: {_first_line(one)} *{caution}*")
    return _SKILL.format(commands="\n".join(rows))


def llms_text() -> str:
    """Return docs/llms.txt: the pages of the documentation, each with its first sentence."""
    pages = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "howto").glob("*.md"))
    rows = [
        f"- [{title}]({page.relative_to(ROOT / 'docs').as_posix()}): {said}" for page, title, said in map(_page, pages)
    ]
    return (
        "# unembed\n\n> A Python package, command line and local web explorer that show how a transformer language "
        "model builds its prediction: feed-forward memories, their sub-updates in vocabulary space, attention "
        "circuits, and the circuit of a behaviour, each tested by changing the model.\n\n## Pages\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _page(path: Path) -> tuple[Path, str, str]:
    text = path.read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None, path
    paragraphs = re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text[title.end() :], flags=re.DOTALL).strip())
    prose = next((one for one in paragraphs if re.match(r"[A-Z`*\[]", one)), title[1])
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", prose.replace("\n", " "))
    return path, title[1], re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")


FILES = {"AGENTS.md": agents_page, "docs/llms.txt": llms_text, "docs/skills/unembed/SKILL.md": skill}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(make(), encoding="utf-8")

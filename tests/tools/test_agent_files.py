"""The files for agents are what the declarations say, and what they point to exists."""

import re

import pytest
from tools.agent_files import FILES, ROOT

from unembed.cli.agents.tools import tools


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_its_tool_writes_it(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == FILES[name](), "run python -m tools.agent_files"


def test_links_lead_to_files() -> None:
    text = FILES["docs/llms.txt"]()
    pages = re.findall(r"\]\(([^)]+)\)", text)
    assert len(pages) > 20 and all((ROOT / "docs" / page).is_file() for page in pages)
    assert all((ROOT / page).is_file() for page in re.findall(r"\]\(([^)]+\.md)\)", FILES["AGENTS.md"]()))


def test_the_skill_has_every_tool_with_its_caution() -> None:
    rows = [line for line in FILES["docs/skills/unembed/SKILL.md"]().splitlines() if line.startswith("- `")]
    assert len(rows) == len(tools()) and all(re.search(r": .+\. \*.+\.\*$", row) for row in rows)

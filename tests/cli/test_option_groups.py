"""Groups of options are checked before anything costs time."""

from __future__ import annotations

import pytest
import typer

from unembed.cli.option_groups import Output


def test_two_forms_for_stdout_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="choose one"):
        Output(as_json=True, csv=True)

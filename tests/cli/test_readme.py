"""The README's first command does what it shows."""

import re
from pathlib import Path

from typer.testing import CliRunner

from argus_cli.cli.app import app

README = Path(__file__).parents[2] / "README.md"


def test_first_command_prints_what_is_shown(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    shown = re.search(r"argus caption (tests/photos/\S+)\n(.*)\n```", README.read_text())
    assert shown
    monkeypatch.chdir(README.parent)
    # float32, so that the answer doesn't depend on what this CPU is fast at
    done = CliRunner().invoke(app, ["caption", shown[1], "-m", "glimpse", "--dtype", "float32"])
    assert done.exit_code == 0
    assert done.stdout == shown[2] + "\n"

"""What was measured: the commit of the checkout. For scripts that run where there may be no git."""

from __future__ import annotations

import subprocess
from pathlib import Path


def head_commit() -> str:
    """The checkout's commit; "unknown" without git or history, as on a machine that was only given the files."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return told.stdout.strip() or "unknown"

"""`.ci/second_stack` where it cannot work; where it can, it takes minutes and is part of `make test-all`."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci/second_stack"


def test_without_the_right_to_mount_one_line_says_so(tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [SCRIPT, tmp_path / "root"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "second stack: not checked, as only root may mount folders\n",
        "",
    )
    assert not (tmp_path / "root").exists()

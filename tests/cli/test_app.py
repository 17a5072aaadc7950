"""The command from its first moment on, in a process of its own."""

import subprocess
import sys
from typing import Final

import pytest

from greedw_cli import exits

INTERRUPTED_WHILE_LOADING: Final = """
import os, signal, sys
from greedw_cli.app import main

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv[1]
sys.argv = ["greedw", "--version"]
sys.meta_path.insert(0, CtrlC())
main()
"""


@pytest.mark.parametrize("module", ["typer", "greedw_cli.demo", "numpy"])
def test_ctrl_c_while_the_command_loads_ends_it_with_130_and_no_word(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED_WHILE_LOADING, module],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (exits.INTERRUPTED, "", "")

"""`trl-ablate`: commands are found, listed in the help, and imported only when they are used."""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.cli.main import COMMANDS, main

STOCK = REPOSITORY / "tests" / "data" / "stock_grpo" / "healthy"


def test_the_help_names_every_command_and_exit_code(capsys):
    assert main(["--help"]) == main([]) == 0
    shown = capsys.readouterr().out
    for name, text in COMMANDS.items():
        assert f"  {name} " in shown and text in shown
    assert all(f"\n  {code} " in shown for code in (0, 1, 2, 75, 130))


def test_neither_the_help_nor_a_commands_help_loads_torch():
    code = (
        "import sys\n"
        "from contextlib import redirect_stdout, suppress\n"
        "from io import StringIO\n"
        "from trl_ablate.cli.main import COMMANDS, main\n"
        "main(['--help'])\n"
        "for name in COMMANDS:\n"
        "    with suppress(SystemExit), redirect_stdout(StringIO()):\n"
        "        main([name, '--help'])\n"
        "main(['recipes'])\n"
        "main(['plan', '--json'])\n"
        "picture = ['--picture', '/dev/null', '--overwrite']\n"
        f"main(['inspect', {str(STOCK)!r}, *picture])\n"
        "heavy = {'torch', 'transformers', 'trl', 'huggingface_hub', 'ray', 'modal'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_is_not_utf8_gets_replacements():
    code = (
        "from trl_ablate.cli.main import main\n"
        f"main(['--help'])\nraise SystemExit(main(['inspect', {str(STOCK)!r}]))\n"
    )
    env = {**os.environ, "PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"usage: trl-ablate COMMAND ?" in done.stdout and b"no rule fired" in done.stdout


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trl-ablate ")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_has_examples_and_exit_codes(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert shown.startswith(f"usage: trl-ablate {name} ")
    examples, codes, _ = shown.partition("examples:\n  ")[2].partition("exit codes:\n  0 ")
    assert f"trl-ablate {name} " in examples and codes
    assert all(len(line) <= 110 for line in shown.splitlines())

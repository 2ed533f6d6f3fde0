"""`relograph doctor` on this machine."""

import subprocess
import sys
from importlib.metadata import version

from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.environment import extras


def test_doctor_names_every_extra_and_how_to_get_those_that_are_missing():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    for extra in extras():
        (line,) = [line for line in lines if line.split()[0] == extra.name]
        assert line.split()[1] == ("complete" if extra.is_complete else "missing")
        assert (f"pip install 'relograph[{extra.name}]'" in done.stdout) == bool(extra.missing)


def test_doctor_tells_the_versions_of_what_is_installed():
    words = CliRunner().invoke(app, ["doctor"]).stdout.split()
    for name in ("relograph", "torch", "numpy"):
        assert words[words.index(name) + 1] == version(name)


def test_doctor_survives_a_torch_that_cannot_be_imported():
    script = (
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise OSError('libtorch_cpu.so: cannot open shared object file')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "sys.argv = ['relograph', 'doctor']\n"
        "from relograph.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "torch cannot be imported (OSError: libtorch_cpu.so" in done.stdout

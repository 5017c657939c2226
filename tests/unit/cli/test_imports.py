"""Modules that are put off are imported when they are used, and a run imports none of them."""

import json
import os
import subprocess
import sys

import pytest

from trl_ablate.cli.imports import Later, put_off


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package, the attribute by which it shows that it was imported, and its submodule."""
    folder = tmp_path / "put_off_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import os\nos.environ['WAS_IMPORTED'] = 'yes'\nvalue = 1\n"
        "def change():\n    global value\n    value = 7\n"
    )
    (folder / "part.py").write_text("from put_off_package import value\ndouble = 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("WAS_IMPORTED", "no")
    put_off((folder.name,))
    yield folder.name
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def was_imported() -> bool:
    return os.environ["WAS_IMPORTED"] == "yes"


def test_a_module_is_imported_when_it_is_used_and_stays_the_same_object(package):
    """trackio sets its config when a run begins, and transformers reads it from the module."""
    held = sys.modules[package]
    assert isinstance(held, Later) and not hasattr(held, "__wrapped__") and held.__file__
    assert not was_imported()
    held.change()
    assert held.value == 7 and was_imported()
    assert sys.modules[package] is held and not isinstance(held, Later)
    with pytest.raises(AttributeError, match="nothing"):
        _ = held.nothing


def test_a_module_that_cannot_be_imported_fails_each_time(package):
    folder = os.path.dirname(sys.modules[package].__file__)
    with open(os.path.join(folder, "__init__.py"), "w") as file:
        file.write("raise OSError('no such library')")
    for _ in range(2):
        with pytest.raises(OSError, match="no such library"):
            __import__(package).value  # noqa: B018


def test_its_submodules_can_be_imported_first(package):
    from put_off_package.part import double  # pyright: ignore[reportMissingImports]

    assert double == 2 and was_imported()


def test_what_is_imported_or_missing_is_left_alone():
    put_off(("json", "no_such_module"))
    assert sys.modules["json"] is json and "no_such_module" not in sys.modules


@pytest.mark.slow
def test_a_training_imports_no_compiler_no_quantization_and_no_pictures():
    """What takes seconds to import and is used by few runs; not the time, which depends on the
    machine."""
    code = (
        "import sys\n"
        "from trl_ablate.cli.imports import Later, put_off\n"
        "put_off()\n"
        "from trl_ablate.training import lifecycle\n"
        "seldom = {'bitsandbytes', 'matplotlib', 'trackio', 'torch._inductor.compile_fx', 'vllm'}\n"
        "real = {name for name in seldom if not isinstance(sys.modules.get(name), Later | None)}\n"
        "assert not real, real\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr[-500:]) == (0, "")

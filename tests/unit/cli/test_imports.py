"""Modules that are put off are imported when they are used, and a run imports none of them."""

import json
import subprocess
import sys

import pytest

from trl_ablate.cli.imports import Later, put_off


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package that is put off, and its file; it has the part `part`."""
    file = tmp_path / "put_off_package" / "__init__.py"
    file.parent.mkdir()
    file.write_text("value = 1\ndef change():\n    global value\n    value = 7\n")
    (file.parent / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    put_off((file.parent.name, "json", "no_such_module"))
    yield file.parent.name, file
    for name in [name for name in sys.modules if name.startswith(file.parent.name)]:
        del sys.modules[name]


def test_a_module_is_imported_when_it_is_used_and_stays_the_same_object(package):
    """trackio sets its config when a run begins, and transformers reads it from the module."""
    held = sys.modules[package[0]]
    assert sys.modules["json"] is json and "no_such_module" not in sys.modules
    assert isinstance(held, Later) and not hasattr(held, "__wrapped__") and held.__file__
    assert "value" not in vars(held)
    held.change()
    assert held.value == 7
    assert sys.modules[package[0]] is held and not isinstance(held, Later)
    with pytest.raises(AttributeError, match="nothing"):
        _ = held.nothing


def test_a_module_that_cannot_be_imported_fails_each_time(package):
    name, file = package
    file.write_text("raise OSError('no such library')")
    for _ in range(2):
        with pytest.raises(OSError, match="no such library"):
            __import__(name).value  # noqa: B018


def test_a_part_that_is_imported_alone_comes_with_the_whole_package(package):
    """transformers imports only the optimizers of bitsandbytes, which registers their kernels."""
    import put_off_package.part  # pyright: ignore[reportMissingImports]

    assert vars(put_off_package)["value"] == 1


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

"""What the text of a script tells of the variables that it sets before it imports torch."""

import pytest

from launcher.workers.script_settings import ImportSettings
from launcher.workers.script_text import read_script, script_file

SETS = {"OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch", SETS),
        ("import torch, os\nos.environ['OMP_NUM_THREADS'] = '2'", {}),
        ("from torch import nn\nimport os\nos.environ['OMP_NUM_THREADS'] = '2'", {}),
        ("import os as _o\n_o.environ['OMP_NUM_THREADS'] = str(2)", SETS),
        ("from os import environ\nenviron['OMP_NUM_THREADS'] = '2'", SETS),
        ("import os\nos.environ.update({'OMP_NUM_THREADS': '2'})", SETS),
        ("import os\nos.environ.update(OMP_NUM_THREADS='2')", SETS),
        ("import os\nos.environ |= {'OMP_NUM_THREADS': '2'}", SETS),
        ("import os\nos.environ.setdefault('OMP_NUM_THREADS', '2')", SETS),
        ("import os\nos.environ.setdefault('GIVEN', '2')", {}),
        ("import os\nif 'OMP_NUM_THREADS' not in os.environ:\n    os.environ['OMP_NUM_THREADS'] = '2'", SETS),
        ("import os\nif 'GIVEN' not in os.environ:\n    os.environ['GIVEN'] = '2'", {}),
        ("import os\nfor name in ('OMP_NUM_THREADS',):\n    os.environ[name] = '2'", SETS),
        ("import os\nN = '2'\nos.environ['OMP_NUM_THREADS'] = N", SETS),
        ("import os\nwith open('/dev/null'):\n    os.environ['OMP_NUM_THREADS'] = '2'", SETS),
        ("import os\ntry:\n    os.environ['OMP_NUM_THREADS'] = '2'\nfinally:\n    pass", SETS),
        ("import os\ndef f():\n    os.environ['OMP_NUM_THREADS'] = '2'\n    import torch\nf()", SETS),
        ("import os\ndef f():\n    os.environ['OMP_NUM_THREADS'] = '2'\n", {}),
        ("import os\ndef f():\n    import torch\nf()\nos.environ['OMP_NUM_THREADS'] = '2'", {}),
        ("import os\nif __name__ == '__main__':\n    os.environ['OMP_NUM_THREADS'] = '2'\n    import torch", SETS),
        ("import os\ndel os.environ['GIVEN']", {"GIVEN": None}),
        ("import os\nos.environ.pop('GIVEN', None)", {"GIVEN": None}),
        ("import settings_beside\nimport torch", {"TORCH_LOGS": "beside"}),
        ("from package_beside.inner import thing\nimport torch", {"TORCH_LOGS": "inside"}),
        ("import imports_torch_beside\nimport os\nos.environ['OMP_NUM_THREADS'] = '2'", {}),
        ("this is no python", {}),
    ],
)
def test_what_is_set_for_certain(tmp_path, text, values):
    """In the order in which Python would run it, up to the import of torch."""
    (tmp_path / "settings_beside.py").write_text(
        "import os\nif __name__ == '__main__':\n    os.environ['NOT_RUN'] = '1'\nos.environ['TORCH_LOGS'] = 'beside'\n"
    )
    (tmp_path / "imports_torch_beside.py").write_text("import torch\n")
    (tmp_path / "package_beside").mkdir()
    (tmp_path / "package_beside" / "__init__.py").write_text("")
    (tmp_path / "package_beside" / "inner.py").write_text("import os\nos.environ['TORCH_LOGS'] = 'inside'\n")
    script = tmp_path / "script.py"
    script.write_text(text + "\n")

    found = read_script(str(script), {"GIVEN": "1"})

    assert (found.values, found.untold) == (values, {})


def test_a_zygote_is_made_with_what_the_text_sets(tmp_path):
    """And not from this process, which has imported torch without it: it would be thrown away."""
    script = tmp_path / "script.py"
    script.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n")

    settings = ImportSettings.of_script(str(script), False, {})

    assert settings.change({})
    assert settings.change({"OMP_NUM_THREADS": "1"})
    assert not settings.change({"OMP_NUM_THREADS": "2"})


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['OMP_NUM_THREADS'] = str(os.cpu_count())",
        "import os, sys\nif len(sys.argv) > 1:\n    os.environ['OMP_NUM_THREADS'] = '2'",
        "import os\nwhile something():\n    os.environ['OMP_NUM_THREADS'] = '2'",
        "import os\nos.environ.setdefault('OMP_NUM_THREADS', f'{n}')",
        "import os\nos.putenv('OMP_NUM_THREADS', '2')",
        "import os\ntry:\n    pass\nexcept ValueError:\n    os.environ['OMP_NUM_THREADS'] = '2'",
    ],
)
def test_what_only_a_run_can_tell_is_named_with_its_line_and_workers_are_spawned(tmp_path, text):
    """A value that is computed, or a condition: no zygote can be made for that ahead."""
    script = tmp_path / "script.py"
    script.write_text(text + "\nimport torch\n")
    line = next(number for number, code in enumerate(text.splitlines(), 1) if "OMP_NUM_THREADS" in code)

    settings = ImportSettings.of_script(str(script), False, {})

    assert settings.why_not is not None
    assert f"script.py, line {line} sets OMP_NUM_THREADS" in settings.why_not


def test_variables_that_no_import_reads_change_nothing(tmp_path):
    """They may be set to anything, at any time."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nos.environ['MY_OWN'] = sys.argv[1]\nos.environ['NCCL_DEBUG'] = 'INFO'\n")

    settings = ImportSettings.of_script(str(script), False, {})

    assert settings.why_not is None
    assert not settings.change({})


def test_the_file_of_a_module_is_found_as_python_finds_it(tmp_path, monkeypatch):
    """Beside the working folder, as a file or a package."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("")
    monkeypatch.chdir(tmp_path)

    assert script_file("package", True) == str(tmp_path / "package" / "__main__.py")
    assert script_file("package.part", True) == str(tmp_path / "package" / "part.py")
    assert script_file("no_such_thing", True) is None
    assert script_file(str(tmp_path / "package"), False) == str(tmp_path / "package" / "__main__.py")


def test_what_workers_report_corrects_the_guess_and_is_said_once():
    """The next zygote gets it; two values of one variable cannot be had from one zygote."""
    said = []
    settings = ImportSettings({"TORCH_LOGS": "guessed"})
    settings.learn({"OMP_NUM_THREADS": "3", "TORCH_LOGS": None}, ["OMP_NUM_THREADS"], said.append)
    settings.learn({"OMP_NUM_THREADS": "3", "TORCH_LOGS": None}, ["OMP_NUM_THREADS"], said.append)

    assert settings.applied_to({"TORCH_LOGS": "given", "A": "1"}) == {"OMP_NUM_THREADS": "3", "A": "1"}
    (line,) = said
    assert "OMP_NUM_THREADS=3, TORCH_LOGS unset" in line
    assert "TORCH_LOGS counts from the next generation on" in line
    assert settings.why_not is None

    settings.learn({"OMP_NUM_THREADS": "4"}, [], said.append)
    assert settings.why_not is not None

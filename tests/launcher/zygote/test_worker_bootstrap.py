"""A forked worker finds itself started as ``python -u`` starts a script, a folder or an archive; compared with it.

Workers, zygote and the interpreters to compare with are real processes; the zygote imports no torch.
"""

import contextlib
import ctypes
import json
import os
import py_compile
import select
import subprocess
import sys
import zipfile

import pytest

from launcher.processes.handles import become_subreaper
from launcher.workers.spawn import Launch
from launcher.workers.warm_pool import WarmPool
from launcher.workers.warm_starter import WarmStarter
from launcher.workers.zygote_handle import ZygoteHandle

PATIENCE = 180.0
TELLS = """
import json, multiprocessing, os, sys
import attrs

def told():
    main = sys.modules["__main__"]
    loader, spec = main.__loader__, main.__spec__
    started_in = os.getcwd()
    return {
        "path": sys.path,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "main": {name: value for name, value in vars(main).items() if isinstance(value, (str, type(None)))},
        "names": sorted(name for name in vars(main) if name.startswith("__")),
        "loader": [type(loader).__name__, *(getattr(loader, name, None) for name in ("path", "archive", "name"))],
        "spec": [getattr(spec, name, None) for name in ("name", "origin")],
        "spec_loader": type(getattr(spec, "loader", None)).__name__,
        "importers": {k: type(v).__name__ for k, v in sys.path_importer_cache.items() if k.startswith(os.getcwd())},
        "file": sys._getframe().f_code.co_filename,
        "attrs": getattr(attrs, "WHOSE", "installed"),
        "folder": started_in,
    }

def double(value):
    return 2 * value

if __name__ == "__main__":
    facts = told()
    os.chdir("/")
    import beside
    facts["beside"] = beside.__file__
    child = multiprocessing.get_context("spawn").Process(target=beside.child)
    child.start()
    child.join()
    facts["child"] = child.exitcode
    with open(os.environ["TOLD"], "w") as file:
        json.dump(facts, file)
"""
BESIDE = "def child():\n    pass\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A folder with one program in many forms."""
    folder = tmp_path_factory.mktemp("run_as_main") / "scripts"
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "__main__.py").write_text(TELLS)
    (folder / "folder" / "attrs.py").write_text("WHOSE = 'mine'\n")
    (folder / "script.py").write_text(TELLS)
    for place in (folder, folder / "folder"):
        (place / "beside.py").write_text(BESIDE)
    for name in ("archive.zip", "archive.dat"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("__main__.py", TELLS)
            archive.writestr("beside.py", BESIDE)
            archive.writestr("attrs/__init__.py", "WHOSE = 'mine'\n")
    (folder / "link.py").symlink_to("script.py")
    (folder / "link").symlink_to("folder")
    py_compile.compile(str(folder / "script.py"), str(folder / "compiled.pyc"))
    (folder / "no_main").mkdir()
    return folder


@contextlib.contextmanager
def starter_in(folder):
    """A starter whose workers have this working folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("launcher.processes.handles._adopter", 0)  # put back at the end: other tests share this process
        become_subreaper()
        patched.chdir(folder)
        starter = WarmStarter(WarmPool(ZygoteHandle.by_exec((), dict(os.environ)), (), pytest.fail), pytest.fail)
        yield starter
        starter.close()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def starter(program):
    with starter_in(program) as starter:
        yield starter


def run_warm(starter, target, told, stderr=""):
    """Exit code of one warm worker."""
    command = (sys.executable, "-u", target, "an", "argument")
    pids = starter.start_all({0: Launch(command=command, environment={"TOLD": str(told)}, stderr=str(stderr))})
    pidfd = os.pidfd_open(pids[0])
    assert select.select([pidfd], [], [], PATIENCE)[0], "the worker does not end"
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1])


def run_python(target, told):
    environment = {**os.environ, "TOLD": str(told)}
    return subprocess.run(
        [sys.executable, "-u", target, "an", "argument"], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "target",
    [
        "folder",
        "./folder/",
        "link",
        "archive.zip",
        "../scripts/archive.dat",
        "script.py",
        "../scripts/link.py",
        "compiled.pyc",
    ],
)
def test_whatever_python_can_run_finds_itself_as_python_starts_it(starter, tmp_path, target):
    """Wherever it goes then: imports from beside itself and spawned children work after ``os.chdir()``."""
    theirs = run_python(target, tmp_path / "theirs")
    assert (theirs.returncode, theirs.stderr) == (0, "")
    assert run_warm(starter, target, tmp_path / "ours") == 0
    expected, found = (json.loads((tmp_path / name).read_text()) for name in ("theirs", "ours"))
    assert found == expected
    assert found["attrs"] == ("installed" if target.endswith((".py", ".pyc")) else "mine")


@pytest.mark.parametrize("target", ["missing.py", "no_main", "."])
def test_what_cannot_be_run_ends_as_with_python(starter, tmp_path, target):
    """One line that names it, no traceback of ours, and the same exit code."""
    theirs = run_python(target, tmp_path / "theirs")
    assert run_warm(starter, target, tmp_path / "ours", tmp_path / "stderr") == theirs.returncode != 0
    assert (tmp_path / "stderr").read_text() == theirs.stderr


def test_in_a_folder_that_was_deleted_a_relative_script_ends_as_with_python(tmp_path):
    """It cannot be found there any more, by nobody; what has an absolute path runs."""
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text("import sys; print(sys.path[:2], __file__, file=sys.stderr)\n")
    (tmp_path / "gone").mkdir()
    with starter_in(tmp_path / "gone") as starter:
        starter.ensure_ready(1)
        (tmp_path / "gone").rmdir()
        for target in ("script.py", "../elsewhere.py", "-m", str(elsewhere)):
            theirs = run_python(target, tmp_path / "theirs")
            code = run_warm(starter, target, tmp_path / "ours", tmp_path / "stderr")
            assert (code, (tmp_path / "stderr").read_text()) == (theirs.returncode, theirs.stderr), target
    assert theirs.returncode == 0

"""What a script, or a preloaded module, has set up before the worker's first import counts in warm workers."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e


def test_descriptors_of_preloaded_tools_stay_and_inherited_ones_do_not(tmp_path):
    """A worker finds those that a spawned one would open by its own imports, and no others."""
    (tmp_path / "keeps_a_file.py").write_text("import os\nkept = os.memfd_create('kept')\nos.write(kept, b'mine')\n")
    script = tmp_path / "looks.py"
    script.write_text(
        "import os, sys, keeps_a_file\n"
        "names = [os.readlink(f'/proc/self/fd/{name}') for name in os.listdir('/proc/self/fd')"
        " if os.path.lexists(f'/proc/self/fd/{name}')]\n"
        "ps = open('/proc/self/cmdline').read().split(chr(0))\n"
        "print('spawned' if ps[2:3] == sys.argv[:1] else 'warm', os.pread(keeps_a_file.kept, 4, 0),"
        " sum('of_the_launcher' in name for name in names))\n"
    )
    inherited = os.memfd_create("of_the_launcher", 0)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "launcher", "--ft-worker-start", "warm", "--ft-preload", "keeps_a_file"),
            *("--log-dir", tmp_path / "logs", script),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        pass_fds=(inherited,),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(inherited)

    assert (done.returncode, done.stdout) == (0, "warm b'mine' 0\n"), done.stderr


def test_a_compiled_script_runs(launch, tmp_path):
    """``train.pyc`` is as good as ``train.py``."""
    (tmp_path / "source.py").write_text("print('ran as', __name__)\n")
    import py_compile

    compiled = py_compile.compile(str(tmp_path / "source.py"), cfile=str(tmp_path / "train.pyc"))

    job = launch(compiled, nproc=1, worker_start="warm")

    assert job.wait(60) == 0, job.stderr
    assert job.stdout == "ran as __main__\n"

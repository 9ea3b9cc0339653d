"""What a script, or a preloaded module, has set up before the worker's first import counts in warm workers."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

SETS = """
import os
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
os.environ["TORCH_LOGS"] = "+inductor"
"""
TELLS = """
import logging, os, sys
import torch, torch.distributed
told = (
    torch.get_num_threads(),
    torch.distributed.get_debug_level().name,
    logging.getLogger("torch._inductor").level,
    len(sys.path),
)
ps = open("/proc/self/cmdline").read().split(chr(0))  # the one thing that tells them apart
how = "spawned" if ps[2:3] == sys.argv[:1] else "warm"
print("told", os.environ.get("FT_RESTART_COUNT"), how, *told)
"""
FAILS_ONCE = """
if os.environ["FT_RESTART_COUNT"] == "0":
    os._exit(4)
"""


def told_by_python(script):
    """What an interpreter finds that was started for the script alone."""
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180, check=True)
    return done.stdout.split()[3:]


def told_by(job):
    return [line.split()[1:] for line in job.stdout.splitlines() if line.startswith("told")]


@pytest.mark.long
def test_what_a_script_sets_before_it_imports_torch_counts(launch, tmp_path):
    """Its text shows it: the workers come from a zygote that was started with it."""
    script = tmp_path / "sets.py"
    script.write_text(SETS + TELLS)
    expected = told_by_python(script)
    assert expected[:3] == ["2", "DETAIL", "10"]

    job = launch(script, nproc=1, worker_start="warm", env={"OMP_NUM_THREADS": "1"})

    assert job.wait(60) == 0, job.stderr
    ((_, _, *found),) = told_by(job)  # warm, unless the zygote's own import took too long on a busy machine
    assert found == expected
    assert "before it imports torch" not in job.stderr


@pytest.mark.long
def test_what_only_a_run_shows_counts_at_once_or_from_the_next_generation_on(launch, tmp_path):
    """And it is said which of the two."""
    (tmp_path / "hidden").write_text(SETS)
    script = tmp_path / "hides.py"
    script.write_text(f"exec(open({str(tmp_path / 'hidden')!r}).read())\n{TELLS}{FAILS_ONCE}")

    job = launch(script, nproc=1, options=("--max-restarts", "1"), worker_start="warm", env={"OMP_NUM_THREADS": "1"})

    assert job.wait(60) == 0, job.stderr
    first, second = told_by(job)
    assert first[:4] == ["0", "warm", "2", "DETAIL"]
    assert second[2:5] == ["2", "DETAIL", "10"]
    (line,) = [line for line in job.stderr.splitlines() if "before it imports torch" in line]
    assert "TORCH_LOGS counts from the next generation on" in line


@pytest.mark.long
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
        timeout=180,
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

"""A worker cannot tell whether it is warm, and nobody loses by how it was started."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.e2e


def tell(launch, tmp_path, mode, *, options=(), script="tell_all.py", env=None):
    folder = tmp_path / f"told-{mode}"
    folder.mkdir()
    job = launch(
        script,
        "--an-argument",
        "with space",
        options=options,
        fresh=mode == "warm",  # those are forked, and the seed of hashes is an interpreter's from its start
        worker_start=mode,
        env={"TELL_ALL": str(folder), "PYTHONHASHSEED": "7", "TORCH_LOGS": "", **(env or {})},
    )
    assert job.wait(90) == 0, job.stderr
    told = [json.loads((folder / f"{rank}.json").read_text().replace(str(job.work), "WORK")) for rank in (0, 1)]
    assert all((folder / f"atexit-{rank}").exists() for rank in (0, 1))
    return told, job


@pytest.mark.parametrize(
    "way",
    ["script", *(pytest.param(way, marks=pytest.mark.long) for way in ("module", "many-threads", "folder", "archive"))],
)
def test_a_warm_worker_cannot_tell_itself_from_a_spawned_one(launch, tmp_path, way):
    """Everything that a program can see of itself, compared key by key."""
    options, script, env = (), "tell_all.py", {}
    if way == "module":
        options, script, env = ("-m",), "tell_all", {"PYTHONPATH": str(SCRIPTS)}
    if way == "many-threads":
        env = {"OMP_NUM_THREADS": "3", "PYTHONFAULTHANDLER": "1"}
    if way in ("folder", "archive"):
        # Relative paths, as a shell gives them; the children of such a program find nothing of its __main__.
        script, env = f"../../{way}", {"OMP_SCHEDULE": "static"}
        if way == "folder":
            (tmp_path / way).mkdir()
            (tmp_path / way / "__main__.py").write_text((SCRIPTS / "tell_all.py").read_text())
        else:
            with zipfile.ZipFile(tmp_path / way, "w") as archive:
                archive.write(SCRIPTS / "tell_all.py", "__main__.py")
    spawned, _ = tell(launch, tmp_path, "spawn", options=options, script=script, env=env)
    warm, job = tell(launch, tmp_path, "warm", options=options, script=script, env=env)

    assert "warm start is off" not in job.stderr
    for rank in (0, 1):
        # The import of torch looks for entry points in all of sys.path, and importlib.metadata keeps archives open.
        spawned[rank]["descriptors"] = {k: v for k, v in spawned[rank]["descriptors"].items() if v != "archive"}
        differing = {
            key: (spawned[rank][key], warm[rank][key])
            for key in spawned[rank]
            if spawned[rank][key] != warm[rank][key] and key not in ("random_digest", "torch_seed")
        }
        assert differing == {}, "\n".join(f"{key}: {one}\n  warm: {two}" for key, (one, two) in differing.items())
    # Some versions of torch draw a seed in every process, others have one for all: warm workers do as spawned ones.
    assert len({told["torch_seed"] for told in warm}) == len({told["torch_seed"] for told in spawned})
    assert len({told["random_digest"] for told in (*spawned, *warm)}) == 4


@pytest.mark.parametrize(
    ("body", "exit_code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('in words')", 1, "in words"),
        ("import os; os._exit(9)", 9, ""),
        ("def f():\n    raise ValueError('told')\nf()", 1, "ValueError: told"),
        ("this is no python", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        (
            "import threading, os\nthreading.Thread(target=lambda: os._exit(12)).start()\nthreading.Event().wait()",
            12,
            "",
        ),
        ("import sys; sys.excepthook = lambda *a: print('my own hook', file=sys.stderr)\n1/0", 1, "my own hook"),
    ],
    ids=["code", "words", "os-exit", "exception", "syntax", "interrupt", "abort", "thread", "hook"],
)
def test_a_warm_worker_ends_as_a_spawned_one(launch, tmp_path, body, exit_code, said):
    """Exit code and last words are those of an interpreter; no frame of ours is in a traceback."""
    script = tmp_path / "ends.py"
    script.write_text(body + "\n")

    job = launch(script, nproc=1, worker_start="warm")

    assert job.wait(60) == 1
    (incident,) = job.incidents()
    assert incident.culprit.exit_code == exit_code
    assert said in job.stderr
    assert "become.py" not in job.stderr
    assert "console_main" not in job.stderr


def test_a_workers_own_folder_wins_over_what_the_zygote_has_loaded(launch, tmp_path):
    """A file beside the script may have the name of a module that is loaded already, ours included."""
    (tmp_path / "launcher.py").write_text("WHOSE = 'mine'\n")
    (tmp_path / "attrs.py").write_text("WHOSE = 'mine'\n")
    script = tmp_path / "own.py"
    script.write_text("import attrs, launcher\nprint('whose', attrs.WHOSE, launcher.WHOSE)\n")

    job = launch(script, nproc=1, worker_start="warm")

    assert job.wait(60) == 0, job.stderr
    assert "whose mine mine" in job.stdout


def test_streams_go_to_files_as_with_spawned_workers(launch, tmp_path):
    """``--redirects`` and ``--tee`` put what a warm worker writes where torchrun puts it, raw writes included."""
    script = tmp_path / "writes.py"
    script.write_text("import os, sys\nprint('through python')\nos.write(1, b'through the descriptor\\n')\n")

    job = launch(script, nproc=1, options=("--tee", "3"), worker_start="warm")

    assert job.wait(60) == 0, job.stderr
    (log,) = job.log_folder.glob("workers/*/attempt_0/0/stdout.log")
    assert log.read_text() == "through python\nthrough the descriptor\n"
    assert "[default0]:through python" in job.stdout


@pytest.mark.parametrize(
    ("options", "ft", "why"),
    [
        (("--no-python",), {}, "--no-python"),
        # Each takes another import of torch; tests/launcher/workers/test_warm_starter.py has them by themselves.
        pytest.param(
            *((), {"preload": "no_such_module_at_all"}, "cannot import 'no_such_module_at_all'"), marks=pytest.mark.long
        ),
        pytest.param(*((), {"preload": "starts_a_thread"}, "started 1 thread(s)"), marks=pytest.mark.long),
    ],
    ids=["no-python", "missing-preload", "preload-with-thread"],
)
def test_where_warm_start_is_unsafe_workers_are_spawned_and_it_is_said_once(launch, tmp_path, options, ft, why):
    """The fall-back is chosen by itself; the job runs."""
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    script = tmp_path / "runs.py"
    script.write_text(f"#!{sys.executable}\nprint('ran')\n")
    script.chmod(0o755)

    job = launch(script, options=options, fresh=bool(ft), worker_start="warm", env={"PYTHONPATH": str(tmp_path)}, **ft)

    assert job.wait(60) == 0, job.stderr
    assert job.stdout.count("ran") == 2
    assert job.stderr.count("warm start is off") == 1
    assert why in job.stderr


def children_called(job, name):
    """The launcher's children with a name, by pid."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            comm, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
            if comm == name and int(fields[1]) == job.pid and fields[0] != "Z":
                found.append(int(entry))
    return found


@pytest.mark.parametrize("lost", ["ft_zygote", "ft_parked"])
def test_losing_the_zygote_or_a_parked_worker_costs_no_rank_and_is_mended(launch, tmp_path, lost):
    """It is killed while the job runs: the same workers go on, and the next generation is warm again."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = tmp_path / "waits.py"
    script.write_text(
        f"import os\nif os.environ['FT_RESTART_COUNT'] == '0':\n    open({str(gate)!r}).read()\n    os._exit(4)\n"
    )
    job = launch(script, options=("--max-restarts", "1"), worker_start="warm")
    job.wait_for_event("started")  # before, those that are parked are the first generation's
    job.until(lambda: len(children_called(job, "ft_parked")) == 2, "two parked workers")
    workers = job.workers()
    (victim, *_) = children_called(job, lost)

    os.kill(victim, signal.SIGKILL)
    job.until(lambda: "lost" in job.stderr, "word of the loss")
    job.until(
        lambda: len(children_called(job, "ft_parked")) == 2 and len(children_called(job, "ft_zygote")) == 1,
        "a mended nursery",
    )
    alive = [pid for pid in workers.values() if Path(f"/proc/{pid}").exists()]
    with open(gate, "w"):  # let generation 0 end
        pass

    assert alive == list(workers.values())
    assert job.wait(60) == 0, job.stderr
    assert set(job.workers(1)) == {0, 1}


def test_a_crash_loop_is_slowed_down_after_three_young_deaths(launch, tmp_path):
    """Generations that die young without a sign of life are waited for; the first three are not."""
    script = tmp_path / "dies.py"
    script.write_text("raise SystemExit(3)\n")

    job = launch(script, nproc=1, options=("--max-restarts", "3"), worker_start="warm")

    assert job.wait(60) == 1
    assert [event["generation"] for event in job.events("backing_off")] == [2]


@pytest.mark.long
def test_a_launcher_inside_somebody_elses_process_spawns(tmp_path):
    """``launcher.main`` as a function never forks its caller, who may have threads."""
    script = tmp_path / "runs.py"
    script.write_text("print('ran')\n")
    program = (
        "import sys, threading\n"
        "from launcher import main\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        f"sys.exit(main(['--log-dir', {str(tmp_path / 'logs')!r}, {str(script)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)

    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.mark.parametrize("nproc", ["cpu", "auto"])
def test_a_number_of_workers_that_torch_counts_needs_no_second_import(launch: Callable[..., Any], nproc: str) -> None:
    """One thread each is settled before torch is imported; a zygote made by exec would be the second import."""
    job = launch("loop.py", "--until-file", "stop", nproc=nproc, env={"OMP_NUM_THREADS": ""}, worker_start="warm")
    job.wait_for_output("runs in generation 0")
    executed = [command for command in job.processes().values() if "launcher.zygote.zygote" in command]
    (job.work / "stop").touch()

    assert job.wait(60) == 0
    assert executed == []
    assert job.stderr.count("OMP_NUM_THREADS is not set") == min(1, (os.cpu_count() or 1) - 1)


@pytest.mark.long
def test_a_script_that_looks_for_torch_before_it_imports_it(launch, tmp_path):
    """As transformers and others do; torch is imported in the zygote, and must not be executed again."""
    script = tmp_path / "looks.py"
    script.write_text(
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('torch')\n"
        "assert 'torch' not in sys.modules\n"
        "assert spec.submodule_search_locations\n"
        "import torch\n"
        "assert torch.__spec__.origin == spec.origin\n"
        "assert importlib.util.find_spec('torch') is torch.__spec__\n"
        "print('imported', torch.ones(2).sum().item())\n"
    )
    job = launch(script, fresh=True, worker_start="warm")
    assert job.wait(90) == 0, job.stderr
    assert job.stdout.count("imported 2.0") == 2

"""A rank that destroys its process group: when, and what it handles then; real groups of torch, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

BEGIN = """
import contextlib, os, sys, threading
import torch.distributed as dist
from resilience_core.monitoring.error_capture import note_error, record_errors_in
from resilience_core.monitoring.group_left import DefaultGroupWatch
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ERROR_TEXT, ITERATION, LEFT_GROUP
from resilience_core.protocol.error_record import parse_error

cell, groups = Cell.create(sys.argv[1]), 0
record_errors_in(cell)

def begin(looks=True):
    global groups
    groups += 1
    init = f"file://{sys.argv[1]}.{groups}"
    dist.init_process_group("gloo", init_method=init, rank=0, world_size=1)
    if looks:
        watch.look()

def fail():
    try:
        raise ValueError("bad batch")
    finally:
        dist.destroy_process_group()
        say()

def say():
    noted = parse_error(cell.read_text(ERROR_TEXT))
    print(name, cell.words[LEFT_GROUP] > 0, noted and f"{noted.type} at {noted.iteration}", sep=": ", flush=True)
"""
HOW: dict[str, tuple[str, str]] = {
    "there": ("begin()\nsay()", "False: None"),
    "in a finally": ("begin()\nfail()", "True: ValueError at 7"),
    "kept by a model": ("begin()\nkept = dist.group.WORLD\nfail()", "True: ValueError at 7"),
    "with no exception": ("begin()\nwatch.look()\ndist.destroy_process_group()\nsay()", "True: None"),
    "a second one": (
        "begin()\ndist.destroy_process_group()\nbegin()\nfail()",
        "True: ValueError at 7",
    ),
    "made anew": ("begin()\ndist.destroy_process_group()\nbegin()\nsay()", "False: None"),
    "one beside it": ("begin()\ndist.destroy_process_group(dist.new_group([0]))\nsay()", "False: None"),
    # Who trains in a handler has not failed by what it handles.
    "handled since before": (
        "try: raise KeyError\nexcept KeyError:\n"
        "    try: raise IndexError\n    except IndexError: begin()\n"
        "    dist.destroy_process_group()\n    say()",
        "True: None",
    ),
    "handled by one that has gone on": (
        "begin()\n"
        "try:\n"
        "    try: raise MemoryError\n"
        "    except MemoryError as error: note_error(error); raise\n"
        "except MemoryError:\n"
        "    cell.words[ITERATION] = 8\n"
        "    cell.write_text(ERROR_TEXT, '')\n"
        "    dist.destroy_process_group()\n    say()",
        "True: None",
    ),
    # What that thread handles is not what the one that trains has raised.
    "in a thread": (
        "def end():\n"
        "    try: raise KeyError\n"
        "    except KeyError: dist.destroy_process_group()\n"
        "begin()\nthread = threading.Thread(target=end)\nthread.start()\nthread.join()\nsay()",
        "True: None",
    ),
    # A process that was forked has a copy of the group, without its threads.
    "in a child": (
        "begin()\n"
        "if (pid := os.fork()) == 0:\n    dist.distributed_c10d._world.pg_map.clear()\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\nsay()",
        "False: None",
    ),
    "made while another thread looks": (
        "begin()\nasked = []\nwatch.when_ended = lambda: asked.append(watch.look_again)\n"
        "dist.destroy_process_group()\n"
        "def ask():\n    assert asked[0]()\n    begin(looks=False)\n"
        "    assert not asked[0]()\n    assert not asked[0]()\n"
        "thread = threading.Thread(target=ask)\nthread.start()\nthread.join()\nfail()",
        "True: ValueError at 7",
    ),
    "none": ("assert not watch.look_again()\nwatch.look()\nsay()", "False: None"),
    "with a closed cell": ("begin()\nclosed.close()\ndist.destroy_process_group()\nsay()", "False: None"),
}
END = "\nname = 'at the end of the program'\nbegin()\nsay()\n"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Return what was told in each case; one process for all, since each of them would import torch."""
    path = tmp_path_factory.mktemp("groups") / "cell"
    script = BEGIN
    for name, (how, _) in HOW.items():
        watched = "closed" if "closed" in name else "cell"
        made = "closed = Cell(sys.argv[1])\n" if watched == "closed" else ""
        body = "".join(f"    {line}\n" for line in how.splitlines())
        script += f"\nname = {name!r}\ncell.claim(os.getpid(), 0)\ncell.words[ITERATION] = 7\n{made}"
        script += f"watch = DefaultGroupWatch({watched})\nwith contextlib.suppress(ValueError):\n{body}"
        script += "if dist.is_initialized(): dist.destroy_process_group()\n"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", script + END, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return lambda name: [rest for each, _, rest in lines if each == name]


@pytest.mark.parametrize("name", [*HOW, "at the end of the program"])
def test_the_end_of_the_default_group_is_noted_with_what_is_handled_then(
    said: Callable[[str], list[str]], name: str
) -> None:
    assert said(name) == [HOW[name][1] if name in HOW else "False: None"]

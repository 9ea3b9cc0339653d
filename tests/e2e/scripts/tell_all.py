"""Tells everything that a worker can see of itself, as JSON, one file per rank under $TELL_ALL.

Two workers, one spawned and one warm, must tell the same.
"""

import atexit
import concurrent.futures
import faulthandler
import gc
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import traceback
import warnings

if __name__ == "__main__":  # a child that imports this file again needs none of them
    import numpy
    import torch
    from torch.utils.data import DataLoader

HERE = os.path.dirname(os.path.abspath(__file__))


class PicklableInMain:
    """Found again by a child only if ``__main__`` is what it should be."""

    def __init__(self, value):
        self.value = value


def in_a_child(value):
    found = type(value).__module__, value.value, os.path.abspath(sys.modules["__main__"].__file__ or ""), sys.argv[1:]
    return found, PicklableInMain(8)


def square(value):
    return value * value


def descriptors():
    """What each inherited descriptor is; the folder being listed is not inherited."""
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        # Libraries open these by themselves, at the same time in either kind of worker.
        if not target.startswith(("/proc/", "/dev/urandom", "anon_inode:")):
            found[name] = target.partition(":")[0] if ":" in target else os.path.basename(target)
    return found


def child_processes():
    told = {}
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                found, returned = pool.submit(in_a_child, PicklableInMain(7)).result(timeout=180)
                told[method] = *found, type(returned) is PicklableInMain, returned.value
    data = torch.arange(8)
    told["dataloader"] = [batch.tolist() for batch in DataLoader(data, batch_size=4, num_workers=1)]
    return told


def main():
    module = sys.modules["__main__"]
    varying = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
    own = ("FT_CELL", "FT_CONFIG_FILE", "FT_CONTROL_SOCKET", "FT_LAUNCHER_PID", "TELL_ALL", "TMPDIR", "FT_TEST_JOB")
    told = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": ["FOLDER" if entry == os.getcwd() else entry for entry in sys.path],
        "executable": sys.executable,
        "comm": open("/proc/self/comm").read().strip(),  # noqa: SIM115
        "main": {
            name: str(getattr(module, name, "missing"))
            for name in ("__name__", "__file__", "__package__", "__doc__", "__cached__", "__builtins__")
        },
        "main_spec": getattr(module.__spec__, "name", None),
        "main_loader": type(module.__loader__).__name__,
        "main_has_annotations": hasattr(module, "__annotations__"),
        "environment": {k: v for k, v in os.environ.items() if k not in (*varying, *own)},
        "environment_names": sorted(os.environ),
        "folder": os.path.basename(os.getcwd()),
        "streams": [
            (s.name, s.mode, s.encoding, s.errors, s.write_through, s.line_buffering, s.isatty())
            for s in (sys.stdout, sys.stderr)
        ],
        "stdin": (sys.stdin.name, sys.stdin.mode, sys.stdin.encoding),
        "signal_handlers": {
            number.name: str(signal.getsignal(number)).partition(" at 0x")[0]
            for number in signal.valid_signals()
            if isinstance(number, signal.Signals)
        },
        "signal_mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "umask": [os.umask(0o22), os.umask(0o22)][0],
        "rlimits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
        },
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "leads_session": os.getsid(0) == os.getpid(),
        "leads_group": os.getpgrp() == os.getpid(),
        "parent_is_launcher": os.getppid() == int(os.environ["FT_LAUNCHER_PID"]),
        "descriptors": descriptors(),
        "hash": hash("a string"),
        "torch_seed": torch.initial_seed(),
        "torch_threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "cuda_is_initialised": torch.cuda.is_initialized(),
        "faulthandler": faulthandler.is_enabled(),
        "threads": [thread.name for thread in threading.enumerate()],
        "main_thread": threading.current_thread() is threading.main_thread(),
        "main_thread_number": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
        "gc": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "excepthook": sys.excepthook is sys.__excepthook__,
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "launcher_is_loaded": any(name.partition(".")[0] in ("launcher", "torch_resilience") for name in sys.modules),
        "stack": [frame.name for frame in traceback.extract_stack()[-2:]],
        "children": child_processes() if os.environ["RANK"] == "0" and "OMP_SCHEDULE" not in os.environ else None,
    }
    random_state = (
        random.random(),
        numpy.random.rand(),
        os.urandom(4).hex(),
        multiprocessing.current_process().authkey,
    )
    told["random_digest"] = hashlib.sha256(repr(random_state).encode()).hexdigest()
    with open(os.path.join(os.environ["TELL_ALL"], os.environ["RANK"] + ".json"), "w") as file:
        json.dump(told, file)
    atexit.register(lambda: open(os.path.join(os.environ["TELL_ALL"], "atexit-" + os.environ["RANK"]), "w").close())
    print("out", os.environ["RANK"])
    print("err", os.environ["RANK"], file=sys.stderr)


if __name__ == "__main__":
    main()

"""Turn a forked process into a worker in which a script finds what ``python -u script`` would give it.

Environment, descriptors, standard streams, ``sys.argv``, ``sys.path``, ``__main__`` and random state are set as a new
interpreter sets them. One difference stays: ``ps`` shows the launcher's command line.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import mmap
import os
import signal
import socket
import sys
import threading
import time
import types
from typing import Any

from launcher.processes.exit_codes import NO_SCRIPT, REPLACED, UNCAUGHT_EXCEPTION
from launcher.processes.process_marks import leave_mark
from launcher.processes.working_folder import working_folder
from launcher.zygote.import_guard import ImportGuard
from launcher.zygote.module_survey import forget_our_own_modules, found, kept_alive
from launcher.zygote.protocol import Handover, Started, WorkerOrder, send_message
from resilience_core.environment import CELL_VARIABLE
from resilience_core.monitoring.error_capture import leave_error
from resilience_core.protocol.cell_layout import FIRST_LINE
from resilience_core.system.plain_files import only_plain
from resilience_core.system.prctl import set_process_name

__all__ = ["run_as_main", "unbuffered"]

_libc = ctypes.CDLL(None)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p


_TORCHS_FIXED_SEED = 67280421310721


def run_as_main(handover: Handover) -> None:
    """Run what was ordered as ``__main__``; return, or exit, as a fresh interpreter would.

    The worker reports to the launcher right before the script's first line. A worker that does not report in time is
    replaced.

    Must be called from the outermost frames of the process, outside any ``with`` or ``try``: whatever stands
    around the call ends with the worker.
    """
    order = handover.order
    set_process_name(os.path.basename(sys.executable))
    _take_environment(order.environment)
    _take_streams(order)
    _renew_random_state()
    _renew_thread_number()
    main = _install_main(order)
    guard = ImportGuard(found.taken, found.import_time, found.ignored, handover.link)
    leave_mark(os.environ.get(CELL_VARIABLE, ""))
    _stamp_first_line()
    _tell_that_it_starts(handover.link)
    guard.install()
    try:
        if order.is_module:
            _run_module(order.argv[0])
        else:
            _run_script(order.argv[0], main)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the outermost loop of the process
        _end_as_uncaught(error)


def _stamp_first_line() -> None:
    """Record when the first line ran; a rank without a cell records nothing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.environ.get(CELL_VARIABLE, ""), os.O_RDWR | os.O_CLOEXEC)
        os.pwrite(descriptor, time.monotonic_ns().to_bytes(8, sys.byteorder), FIRST_LINE * 8)
        _map_for_ever(descriptor)
        os.close(descriptor)


def _tell_that_it_starts(link: socket.socket) -> None:
    """Tell the launcher. One that has closed its end has started another worker in this one's place."""
    try:
        send_message(link, Started())
    except OSError:
        os._exit(REPLACED)


def _map_for_ever(cell: int) -> None:
    """Map the cell: every fork inherits the mapping, and is found by it (``launcher.processes.process_marks``).

    Not by Python's ``mmap``, which keeps a descriptor.
    """
    _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, cell, 0)


def _take_environment(environment: dict[str, str]) -> None:
    for name in set(os.environ) - set(environment) - found.set_at_import:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value and name not in found.set_at_import:
            os.environ[name] = value


def _take_streams(order: WorkerOrder) -> None:
    for number, path in ((1, order.stdout), (2, order.stderr)):
        if path:
            descriptor = only_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
            os.close(descriptor)
    sys.stdout = sys.__stdout__ = unbuffered(1, sys.__stdout__)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = unbuffered(2, sys.__stderr__)  # type: ignore[misc]


def unbuffered(descriptor: int, like: Any) -> Any:
    """Return a standard stream as ``python -u`` makes it."""
    raw = io.FileIO(descriptor, "wb", closefd=False)
    raw.name = {1: "<stdout>", 2: "<stderr>"}[descriptor]
    kept_alive.append(like)
    stream = io.TextIOWrapper(
        raw,
        encoding=like.encoding if like is not None else "utf-8",
        errors=like.errors if like is not None else "backslashreplace",
        newline="\n",
        write_through=True,
    )
    stream.mode = "w"  # type: ignore[misc]
    return stream


def _renew_random_state() -> None:
    """``random`` reseeds itself after a fork; these do not.

    A new torch draws its default seed anew in every process, an older one has a fixed one: it is renewed only if it
    was drawn. CUDA's generators are made when CUDA is initialised, which is later.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.default_generator.initial_seed() != _TORCHS_FIXED_SEED:
        torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def _renew_thread_number() -> None:
    """Let the main thread know its own number: before Python 3.13 a fork leaves it that of the parent's thread."""
    main, number = threading.main_thread(), threading.get_native_id()
    if main.native_id != number and hasattr(main, "_native_id"):
        setattr(main, "_native_id", number)  # noqa: B010 - no type checker knows it


def _install_main(order: WorkerOrder) -> types.ModuleType:
    sys.argv = list(order.argv)
    sys.orig_argv = [sys.executable, "-u", *(["-m"] if order.is_module else []), *order.argv]
    _set_first_path(order)
    forget_our_own_modules(sys.path[0])
    kept_alive.append(sys.modules["__main__"])
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's name for it, taken when it was imported in the zygote
        sys.modules["__mp_main__"] = main
    return main


def _set_first_path(order: WorkerOrder) -> None:
    """Put at the front of ``sys.path`` what ``python`` puts there; the zygote has kept the place."""
    target = order.argv[0]
    is_safe = getattr(sys.flags, "safe_path", False)  # there is no such place then
    if not order.is_module and _is_container(_absolute(target)):
        sys.path[:0] = [_absolute(target)]
        if not is_safe:
            del sys.path[1]
    elif is_safe:
        return
    elif not order.is_module:
        sys.path[0] = _folder_of(target)
    elif (here := working_folder()) is not None:
        sys.path[0] = here
    else:
        del sys.path[0]


def _absolute(path: str) -> str:
    """Return an absolute path as the interpreter makes it: not normalised, and relative where there is no folder."""
    here = working_folder()
    if here is None or os.path.isabs(path):
        return path
    return here if path in ("", ".") else f"{here}/{path}"


def _is_container(path: str) -> bool:
    """Return whether this is a folder or an archive to import ``__main__`` from, as the interpreter notes it."""
    sys.path_importer_cache[path] = None
    for hook in sys.path_hooks:
        with contextlib.suppress(ImportError):
            sys.path_importer_cache[path] = hook(path)
            return True
    return False


def _folder_of(script: str) -> str:
    try:
        return os.path.dirname(os.path.realpath(script))
    except OSError:  # relative, in a working folder that was deleted
        return os.path.dirname(script)


def _run_script(path: str, main: types.ModuleType) -> None:
    absolute = _absolute(path)
    if sys.path_importer_cache.get(absolute) is not None:
        import runpy

        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    from importlib.machinery import SourceFileLoader, SourcelessFileLoader

    main.__dict__.update(__file__=absolute, __loader__=SourceFileLoader("__main__", absolute), __cached__=None)
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {absolute!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr
        )
        sys.exit(NO_SCRIPT)
    with file:
        source = file.read()
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", absolute)
        main.__dict__.update(__loader__=compiled)
        code = compiled.get_code("__main__")
        assert code is not None
        exec(code, main.__dict__)
        return
    exec(compile(source, absolute, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str) -> None:
    """Run a module as ``python -m`` does."""
    import runpy

    sys.argv[0] = "-m"
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _end_as_uncaught(error: BaseException) -> None:
    """Report an uncaught exception as the interpreter does, without the frames of this file, and exit."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    leave_error(error.with_traceback(trace))
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(UNCAUGHT_EXCEPTION)

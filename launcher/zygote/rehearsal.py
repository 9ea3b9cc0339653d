"""What a parked worker does while it waits, so that becoming a worker takes less time.

After a fork, memory is shared with the zygote until it is written to, and in CPython whatever is used is written to:
its reference count. Each page (4 KiB) then costs a fault and a copy, which take microseconds. Between the order and
the script's first line some 600 pages are copied, and 450 more until a process group is formed. Those that are known
in advance are copied while the previous generation still trains.

Three ways were compared (two busy cores, torch 2.13). Processor time from the order to the first line is what
``python -m benchmarks.costs`` gave on 2026-11-22 (medians of 60, load 9). The rest was noted by hand on 2026-11-21, in
the workers of ``python -m benchmarks.restarts`` (two gloo ranks), which itself shows the times between phases:

* *Nothing*: 4.9 ms of processor time from the order to the first line.
* *All of it* (``MADV_POPULATE_WRITE`` on each private mapping): the first line and the group come 9 ms sooner, but a
  worker then owns 100 MB more, and takes 13 ms longer to die: the restart as a whole is slower.
* *A rehearsal*: the same functions, on what is there already. 3.6 ms; a parked worker owns 4.7 MB instead of 1.9. This
  is what is built.

Nothing here may leave anything that a script could see, and whatever fails is left out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types

from launcher.zygote.import_time import import_environment
from launcher.zygote.protocol import WorkerOrder, order_from_file, order_to_file
from launcher.zygote.worker_bootstrap import unbuffered
from resilience_core.environment import REHEARSAL_VARIABLE

__all__ = ["rehearse"]

_FORM_A_GROUP = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.c10d_logger",
    "torch.distributed.constants",
    "torch.distributed.rendezvous",
)

_SCRIPT = (
    """
import os
from collections import abc as other
def main(count: int = 1, *rest, **named) -> None:
    total = [f"{each}:{os.sep}" for each in range(count) if each % 2 or not rest]
    with open("x") as file:
        for index, line in enumerate(file):
            try:
                total[index] += line.strip()
            except (OSError, ValueError) as error:
                raise RuntimeError("no") from error
    while total and count < 3:
        count = count + 1 if named.get("x", (1, 2.0, None)) else -1
    return {"a": total, **named}
class Model(object):
    def forward(self, x): return lambda: self.layer(x) @ x
if __name__ == "__main__":
    main(2, *[1], key=Model)
"""
    * 2
)


def rehearse() -> None:
    """Use what :func:`launcher.zygote.worker_bootstrap.run_as_main` and the forming of a group will use."""
    environment = dict(os.environ)
    with contextlib.suppress(OSError):  # there are too few descriptors: the order itself will say so
        environment = order_from_file(order_to_file(WorkerOrder(("-c",), False, environment, "", ""))).environment
    import_environment(environment)
    for name, value in environment.items():
        if os.environ.get(name) != value:  # never
            return
    os.environ[REHEARSAL_VARIABLE] = ""
    del os.environ[REHEARSAL_VARIABLE]
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # the launcher was started without it
            unbuffered(descriptor, sys.__stdout__)
    types.ModuleType("__main__").__dict__.update(__annotations__={})
    os.path.realpath(sys.executable)
    compile(_SCRIPT, "<rehearsal>", "exec", dont_inherit=True)
    for name in _FORM_A_GROUP:
        if (module := sys.modules.get(name)) is not None:
            _touch(vars(module))


def _touch(namespace: dict[str, object]) -> None:
    """Take and drop a reference to each function of a namespace and of its classes, and to what each consists of."""
    for value in list(namespace.values()):
        if type(value) is types.FunctionType:
            code = value.__code__
            _ = code.co_consts, code.co_names, value.__globals__, value.__defaults__, value.__kwdefaults__
        elif type(value) is type:
            _touch(dict(vars(value)))

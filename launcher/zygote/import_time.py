"""Which environment variables libraries read while they are imported, and so must not change afterwards."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping

__all__ = ["import_environment", "is_read_at_import", "may_be_set_by_a_script"]

# Read by native code, where no look-up can be seen; found with a getenv() that writes down what it is asked for
# (torch 2.13, numpy 2.4), taken wider than that for other versions: a name too many costs one more zygote.
_NATIVE_PREFIXES = (
    *(
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "MKLDNN_",
        "DNNL_",
        "ONEDNN_",
        "OPENBLAS_",
        "GOTO_",
        "BLIS_",
        "NPY_",
        "NUMEXPR_",
    ),
    *("TORCH", "PYTORCH"),
)
# Read when the interpreter starts: a script that sets these changes its children, not itself.
_INTERPRETER_PREFIXES = ("PYTHON", "MALLOC_", "LD_", "GLIBC_")
# Set for workers by every elastic launcher, and read when a process group is made, not at import.
_READ_LATER_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_ELASTIC_", "TORCH_FR_", "PYTHON_EXEC")
_AT_IMPORT_PREFIXES = (*_NATIVE_PREFIXES, *_INTERPRETER_PREFIXES)


@functools.lru_cache(maxsize=4096)  # asked of the same names several times in each restart
def is_read_at_import(name: str) -> bool:
    """Return whether a change of this variable after the import of torch or numpy would come too late."""
    return name.startswith(_AT_IMPORT_PREFIXES) and not name.startswith(_READ_LATER_PREFIXES)


def may_be_set_by_a_script(name: str) -> bool:
    """Return whether a script that sets this variable before it imports torch changes what it imports."""
    return is_read_at_import(name) and not name.startswith(_INTERPRETER_PREFIXES)


def import_environment(environment: Mapping[str, str], also: Collection[str] = ()) -> dict[str, str]:
    """Return the part of an environment that is read at import.

    Args:
        environment: Names and values.
        also: Further names that were seen to be read.
    """
    return {name: environment[name] for name in _relevant(environment, also)}


def _relevant(names: Iterable[str], also: Collection[str]) -> list[str]:
    return [name for name in names if is_read_at_import(name) or name in also]

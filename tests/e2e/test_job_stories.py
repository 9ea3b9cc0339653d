"""One story per failure of a job on several nodes: real launchers, ranks over gloo, one fault each."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.culprits.__main__ import FAULTS, Try
from benchmarks.culprits.memory_limit import MemoryLimit

pytestmark = pytest.mark.e2e


def why_impossible(kind: str) -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "nodes of different names need root and unshare (util-linux)"
    if subprocess.run(["unshare", "--uts", "true"], check=False).returncode != 0:
        return "no UTS namespace can be made"
    if kind == "memory":
        try:
            MemoryLimit(1 << 30).remove()
        except OSError as error:
            return f"no control group of memory can be made: {error}"
    return None


def check(kind: str, membership: str, tmp_path: Path, *, nodes: int, ranks: int) -> None:
    if (why := why_impossible(kind)) is not None:
        pytest.skip(why)
    outcome = Try(kind, nodes, ranks, tmp_path / "job", random.Random(kind + membership), membership).run()
    assert outcome.wrong == ()


@pytest.mark.long
def test_the_culprit_is_named_on_every_node_alike(tmp_path: Path) -> None:
    check("deadlock", "elastic", tmp_path, nodes=2, ranks=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("membership", "kind"),
    [
        *itertools.product(("elastic", "torch"), FAULTS),
        # What a rank shows does not depend on the membership: with fixed nodes a failure, a hang and a stopped rank.
        *itertools.product(("fixed",), ("exception", "deadlock", "stopped")),
    ],
)
def test_every_fault_of_four_nodes(kind: str, membership: str, tmp_path: Path) -> None:
    check(kind, membership, tmp_path, nodes=4, ranks=2)

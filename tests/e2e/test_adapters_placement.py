"""A hang in each place of the loop, through each adapter: found, in the right section, on the right rank.

One launcher for each adapter; each of its generations hangs in another place, and the last one ends well.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incidents

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(800)]

SCRIPTS = Path(__file__).parent / "scripts_adapters"
LAUNCHER = Path(sys.executable).parent / "ft_launcher"
LONGEST = 700

ARGUMENTS = {
    "megatron": ["--save", "out", "--train-iters=8", "--eval-interval=4", "--save-interval=4"],
    "lightning": ["out"],
    "huggingface": ["out"],
}
SECTIONS = {
    "setup": "setup",
    "dataloader": None,
    "forward": "step",
    "backward": "step",
    "optimizer": "step",
    "evaluation": "step",
    "save": "checkpointing",
}
OPTIONS = (
    "--nproc-per-node=2",
    f"--max-restarts={len(SECTIONS)}",
    "--ft-max-no-progress-cycles=0",
    # On a busy machine a step takes seconds, and what torch imports when an optimizer is first made a minute.
    "--ft-rank-section-timeouts=setup:60,step:8,checkpointing:8",
    "--ft-rank-out-of-section-timeout=8",
    "--ft-stack-capture-timeout=60",
    "--ft-preload=torch,torch._inductor.config",
)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, subprocess.Popen[bytes]]]]:
    """All three side by side: most of their time they wait for a deadline."""
    jobs = {}
    for adapter, arguments in ARGUMENTS.items():
        folder = tmp_path_factory.mktemp(adapter)
        (folder / "out").mkdir()
        command = [LAUNCHER, *OPTIONS, SCRIPTS / f"hang_{adapter}.py", *arguments]
        with (folder / "log").open("wb") as log:
            jobs[adapter] = folder, subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    yield jobs
    for _, process in jobs.values():
        process.terminate()
        process.wait()


@pytest.mark.parametrize("adapter", ARGUMENTS)
def test_a_hang_in_every_place(jobs: dict[str, tuple[Path, subprocess.Popen[bytes]]], adapter: str) -> None:
    folder, process = jobs[adapter]

    assert process.wait(LONGEST) == 0, (folder / "log").read_text()

    log_folder = folder / "ft_logs" / "latest"
    incidents = list(read_incidents(str(log_folder)))
    assert len(incidents) == len(SECTIONS)
    for (place, section), incident in zip(SECTIONS.items(), incidents, strict=True):
        check(incident, place, section, culprit=0 if place == "save" else 1)
    assert (folder / "out" / "result.txt").read_text() == f"{8 * (1 + len(SECTIONS))} {len(SECTIONS)}"


def check(incident: Incident, place: str, section: str | None, culprit: int) -> None:
    told = f"{place}: {incident.summary()}"
    assert incident.kind == "hang", told
    assert incident.culprit is not None, told
    assert (incident.culprit.rank, incident.culprit.section) == (culprit, section), told
    (peer,) = [rank for rank in incident.ranks if rank.rank != culprit]
    assert not peer.is_culprit, told
    assert peer.waits_in is not None, told

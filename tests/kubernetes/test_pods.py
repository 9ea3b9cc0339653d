"""The command of the pods, run by this machine: four launchers on loopback addresses, and no kubelet.

What Kubernetes would do with an exit code is read from the manifest's ``podFailurePolicy``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
PODS = 4
PORT = 29400
# Loopback addresses that no other test listens at: the port is the manifest's.
ADDRESSES = [f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}.{index + 1}" for index in range(PODS)]

TRAINING = """
import os, signal, sys, time

def save(*_):
    open(f"saved_{os.environ['RANK']}", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
name = f"up_{os.environ['RANK']}_of_{os.environ['WORLD_SIZE']}"
with open(f"{name}.new", "w") as file:
    file.write(os.environ["JOB_COMPLETION_INDEX"])
os.replace(f"{name}.new", name)
while not os.path.exists("complete"):
    if os.path.exists("fail"):
        sys.exit(5)
    time.sleep(0.05)
"""


def job() -> dict[str, Any]:
    _, manifest = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "job.yaml").read_text(encoding="utf-8"))
    assert isinstance(manifest, dict)
    return manifest


def action(code: int) -> str:
    """Return what the job's ``podFailurePolicy`` does with a pod that ends with a code and was not disrupted."""
    for rule in job()["spec"]["podFailurePolicy"]["rules"]:
        if (on := rule.get("onExitCodes")) is not None:
            assert on["operator"] == "In"
            if code in on["values"]:
                return str(rule["action"])
    return "counts as a failure of the index: another pod is started"


def mount_like_a_kubelet(folder: Path, mode: int) -> Path:
    """Lay a secret out as a kubelet does: behind two symbolic links, with the mode of the manifest."""
    (folder / "..2026_01_01").mkdir(parents=True)
    secret = folder / "..2026_01_01" / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(mode)
    (folder / "..data").symlink_to("..2026_01_01")
    (folder / "secret").symlink_to("..data/secret")
    return folder / "secret"


class PodsWithoutKubelet:
    """The processes that would be the pods' containers, each a session of its own.

    Args:
        folder: Stands for the volume that all pods see.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAINING)
        pod = job()["spec"]["template"]["spec"]
        (self._container,) = pod["containers"]
        mode = next(volume["secret"]["defaultMode"] for volume in pod["volumes"] if volume["name"] == "secret")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("FT_")}
        self._environment |= {each["name"]: each["value"] for each in self._container["env"] if "value" in each}
        self._environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GPUS_PER_NODE": "1",
            "ENDPOINTS": " ".join(ADDRESSES[:3]),
            "WORK_FOLDER": str(folder),
            "SECRET_FILE": str(mount_like_a_kubelet(folder / "secret", mode)),
            "JOB_UID": "5d0f",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, index: int) -> subprocess.Popen[bytes]:
        with (self.folder / f"output_{index}").open("ab") as output:
            started = subprocess.Popen(
                [*self._container["command"], *self._container["args"]],
                cwd=self.folder,
                env={**self._environment, "JOB_COMPLETION_INDEX": str(index), "POD_IP": ADDRESSES[index]},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(started)
        return started

    def launcher(self, index: int) -> int:
        """Return the launcher of a pod: the only child of its shell."""
        (pid,) = (
            Path(f"/proc/{self.processes[index].pid}/task/{self.processes[index].pid}/children").read_text().split()
        )
        assert b"ft_launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return int(pid)

    def place(self, rank: int) -> int:
        return int((self.folder / f"up_{rank}_of_3").read_text())

    def meet(self) -> None:
        names = [self.folder / f"up_{rank}_of_3" for rank in range(3)]
        self.wait_until(lambda: all(name.exists() for name in names))

    def meet_with_spare(self) -> int:
        """Wait until all ranks run and the spare's launcher is connected; return the spare."""
        self.meet()
        (spare,) = set(range(PODS)) - {self.place(rank) for rank in range(3)}
        self.wait_until(lambda: _is_connected(self.launcher(spare)))
        return spare

    def forget(self) -> None:
        for rank in range(3):
            (self.folder / f"up_{rank}_of_3").unlink()

    def wait_until(self, happens: Callable[[], bool]) -> None:
        """Wait for what other processes do: there is no event to wait for."""
        end = time.monotonic() + PATIENCE
        while not happens():
            assert time.monotonic() < end, self.output()
            time.sleep(0.05)

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output_*")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def start_all(self) -> None:
        """Start one pod after the other: here each could listen at the address of another that is not there yet."""
        for index in range(PODS):
            self.start(index)
            self.wait_until(lambda own=index: _is_bound(own))  # type: ignore[misc]


def _connections() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _hexadecimal(index: int) -> str:
    """Return a pod's address as /proc/net/tcp has it."""
    return bytes(int(part) for part in ADDRESSES[index].split("."))[::-1].hex().upper()


def _is_bound(index: int) -> bool:
    return any(row[3] == "0A" and row[1] == f"{_hexadecimal(index)}:{PORT:04X}" for row in _connections())


def _is_connected(pid: int) -> bool:
    """Whether a launcher has a connection to the port of another one."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    return any(row[3] == "01" and row[2].endswith(f":{PORT:04X}") and row[9] in own for row in _connections())


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[PodsWithoutKubelet]:
    made = PodsWithoutKubelet(tmp_path)
    try:
        made.start_all()
        yield made
    finally:
        made.close()


@pytest.mark.long
@pytest.mark.e2e
def test_a_launcher_that_is_killed_is_replaced_by_the_spare_and_its_pod_by_another(pods: PodsWithoutKubelet) -> None:
    spare = pods.meet_with_spare()
    lost = pods.place(1)
    pods.forget()
    os.kill(pods.launcher(lost), signal.SIGKILL)
    pods.meet()
    assert pods.place(1) == spare
    code = pods.processes[lost].wait(PATIENCE)
    assert code == 128 + signal.SIGKILL
    assert action(code).startswith("counts")

    again = pods.start(lost)
    (pods.folder / "complete").touch()
    rest = [process for index, process in enumerate(pods.processes[:PODS]) if index != lost]
    assert [process.wait(PATIENCE) for process in rest] == [0, 0, 0], pods.output()
    again.terminate()  # as Kubernetes does with what is left when successPolicy is met
    again.wait(PATIENCE)


@pytest.mark.long
@pytest.mark.e2e
def test_a_pod_that_is_asked_to_end_saves_and_is_not_done(pods: PodsWithoutKubelet) -> None:
    pods.meet_with_spare()
    asked = pods.place(2)
    pods.forget()
    pods.processes[asked].terminate()
    code = pods.processes[asked].wait(PATIENCE)
    assert (pods.folder / "saved_2").exists()
    assert code == 143
    assert action(code).startswith("counts")

    pods.meet()
    (pods.folder / "complete").touch()
    rest = [process for index, process in enumerate(pods.processes) if index != asked]
    assert [process.wait(PATIENCE) for process in rest] == [0, 0, 0], pods.output()


@pytest.mark.long
@pytest.mark.e2e
def test_a_training_that_fails_for_good_ends_the_job(pods: PodsWithoutKubelet) -> None:
    pods.meet_with_spare()
    (pods.folder / "fail").touch()
    codes = [process.wait(PATIENCE) for process in pods.processes]

    assert {action(code) for code in codes} == {"FailJob"}, pods.output()

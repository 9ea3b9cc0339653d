"""GPUs at a failure: a stand-in for a driver, behind the signatures of the real bindings. No test needs a GPU.

The figures of the stand-in are made up in the units of NVML; ``python -m benchmarks.gpu.evidence`` asks a real one.
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.health import nvml
from launcher.health.nvml import find_bindings
from launcher.incidents import gpus
from launcher.incidents.gpus import GpuEvidence, gpu_lines
from launcher.incidents.machine import MachineEvidence

pynvml = pytest.importorskip("pynvml")
MIB = 1 << 20
ROOT = Path(__file__).parents[3]
RANKS = {4711: "rank 3", 4712: "rank 4"}


class NvmlStandIn:
    """Two GPUs of which ranks 3 and 4 use one each. A value in ``answers`` is returned, or raised, instead."""

    def __init__(self) -> None:
        self.is_open = False
        self.opened = 0
        self.answers: dict[str, Any] = {}
        self.users = {0: [4711], 1: [4712]}

    def nvmlInit(self) -> None:
        self.is_open, self.opened = True, self.opened + 1

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.users)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.users[handle]]

    def nvmlDeviceGetClockInfo(self, handle: int, type: int) -> int:
        assert type == pynvml.NVML_CLOCK_SM
        return 1755

    def nvmlDeviceGetMaxClockInfo(self, handle: int, type: int) -> int:
        assert type == pynvml.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return 61

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: Any = None) -> Any:
        return SimpleNamespace(total=81559 * MIB, free=41559 * MIB, used=40000 * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=100, memory=7)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, errorType: int, counterType: int) -> int:
        assert (errorType, counterType) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return 0


NAMES = [name for name in vars(NvmlStandIn) if name.startswith("nvml")]
FACTS = (
    "SM clock 1755 of 1980 MHz{}, 61 degrees C, 40000 of 81559 MiB used, 100 % busy, {} uncorrected ECC errors since"
)
FACTS += " its last reset"
HEALTHY = FACTS.format("", 0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> NvmlStandIn:
    stand_in = NvmlStandIn()

    def behind(name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(pynvml, name))

        def call(*args: Any) -> Any:
            signature.bind(*args)
            assert stand_in.is_open or name == "nvmlInit"
            found = stand_in.answers.get(name)
            if isinstance(found, Exception):
                raise found
            return getattr(stand_in, name)(*args) if found is None else found

        return call

    for name in NAMES:
        monkeypatch.setattr(pynvml, name, behind(name))
    return stand_in


def error(number: int) -> Any:
    return pynvml.NVMLError(number)


def texts(ranks: dict[int, str] = RANKS) -> list[str]:
    return [line.text for line in gpu_lines(pynvml, ranks)]


@pytest.mark.parametrize("name", NAMES)
def test_the_real_bindings_have_what_the_stand_in_has_with_the_same_arguments(name: str) -> None:
    real = inspect.signature(getattr(pynvml, name)).parameters
    assert [*inspect.signature(getattr(NvmlStandIn, name)).parameters][1:] == [*real]


def test_every_function_that_is_asked_is_in_the_stand_in() -> None:
    source = "".join(map(inspect.getsource, (gpus, nvml.shut_down, nvml.uncorrected_errors)))
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in source).split())
    assert {word for word in words if word.startswith("nvml") and hasattr(pynvml, word)} == set(NAMES)


def test_the_reasons_are_those_of_the_real_bindings() -> None:
    real = {
        value
        for name, value in vars(pynvml).items()
        if name.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason")) and isinstance(value, int)
    }
    assert real - {0, 0x1} >= set(gpus._SLOWED_BY)
    assert pynvml.nvmlClocksEventReasonSwThermalSlowdown == 0x20
    assert pynvml.nvmlClocksThrottleReasonHwThermalSlowdown == 0x40
    assert pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown == 0x80
    assert pynvml.nvmlClocksThrottleReasonGpuIdle == 0x1


def test_each_gpu_of_a_rank_has_a_line(driver: NvmlStandIn) -> None:
    driver.users[2] = [99]  # of somebody else
    assert texts() == [f"GPU 0 (rank 3): {HEALTHY}", f"GPU 1 (rank 4): {HEALTHY}"]
    assert not driver.is_open
    # In a container NVML knows processes by other numbers; and those of ranks that have ended are gone.
    assert texts({1: "rank 0"}) == [f"GPU {n}: {HEALTHY}" for n in range(3)]


@pytest.mark.parametrize(
    ("reasons", "words", "is_trouble"),
    [
        (0x0, "", False),
        (0x1, ", idle", False),
        (0x4, ", slowed down by its power limit", False),
        (0x5, ", slowed down by its power limit", False),
        (0x20 | 0x40, ", slowed down by heat and heat (hardware)", True),
        (0x8 | 0x80, ", slowed down by hardware (heat or power) and the power supply (hardware)", True),
        (0x800, ", slowed down by reason 0x800", False),
    ],
)
def test_what_slows_a_gpu_down_is_told_in_words(
    driver: NvmlStandIn, reasons: int, words: str, is_trouble: bool
) -> None:
    driver.answers["nvmlDeviceGetCurrentClocksEventReasons"] = reasons
    line, _ = gpu_lines(pynvml, RANKS)
    assert line == (f"GPU 0 (rank 3): {FACTS.format(words, 0)}", is_trouble)


def test_errors_of_memory_are_trouble(driver: NvmlStandIn) -> None:
    driver.answers["nvmlDeviceGetTotalEccErrors"] = 2
    line, _ = gpu_lines(pynvml, RANKS)
    assert line == (f"GPU 0 (rank 3): {FACTS.format('', 2)}", True)


def test_what_is_not_known_is_left_out(driver: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TotalEccErrors", "Temperature", "MaxClockInfo", "CurrentClocksEventReasons", "UtilizationRates"):
        driver.answers[f"nvmlDeviceGet{name}"] = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x4  # drivers of before call it so
    rest = "SM clock 1755 MHz, slowed down by its power limit, 40000 of 81559 MiB used"
    assert texts()[0] == f"GPU 0 (rank 3): {rest}"
    monkeypatch.delattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons")
    assert texts()[0] == f"GPU 0 (rank 3): {rest}"
    for name in NAMES:
        if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
            driver.answers[name] = error(pynvml.NVML_ERROR_UNKNOWN)
    assert texts() == ["GPU 0: nothing is known", "GPU 1: nothing is known"]


def test_a_gpu_that_is_lost_is_told(driver: NvmlStandIn) -> None:
    driver.answers["nvmlDeviceGetHandleByIndex"] = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert texts() == [f"GPU {n} does not answer: GPU is lost" for n in range(2)]
    driver.answers["nvmlDeviceGetCount"] = error(pynvml.NVML_ERROR_UNKNOWN)
    assert texts() == ["NVML does not answer: Unknown Error"]
    driver.answers["nvmlInit"] = error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert texts() == ["NVML does not start: Driver Not Loaded"]


# ---- in a thread ------------------------------------------------------------------------------------------


def test_a_gpu_in_trouble_is_told_last(driver: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "uses_a_gpu", lambda pid: pid == 4712)
    monkeypatch.setattr(driver, "nvmlDeviceGetTotalEccErrors", lambda handle, *_: 1 - handle)
    told = GpuEvidence().begin(RANKS, 60, were_used=False).told()
    assert told == [f"GPU 1 (rank 4): {HEALTHY}", f"GPU 0 (rank 3): {FACTS.format('', 1)}"]


def test_where_no_rank_has_a_gpu_nobody_is_asked(driver: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpuEvidence().begin(RANKS, 60, were_used=False).told() == []
    assert GpuEvidence().begin({}, 60, were_used=True).told() == []
    assert driver.opened == 0
    assert len(GpuEvidence().begin(RANKS, 60, were_used=True).told()) == 2  # they have ended
    monkeypatch.setattr(gpus, "find_bindings", lambda: None)
    assert GpuEvidence().begin(RANKS, 60, were_used=True).told() == []


def test_a_look_is_not_lost_to_the_import_of_the_bindings(driver: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, imported = threading.Event(), threading.Event(), gpus._imported

    def slowly(file: str | None) -> Any:
        begun.set()
        goes_on.wait(180)
        return imported(file)

    monkeypatch.setattr(gpus, "has_gpus", lambda machine: True)
    monkeypatch.setattr(gpus, "_imported", slowly)
    evidence = GpuEvidence()
    assert begun.wait(180)
    look = evidence.begin(RANKS, 60, were_used=True)
    goes_on.set()
    assert len(look.told()) == 2


def test_a_process_without_site_packages_is_told_where_the_bindings_are() -> None:
    """A monitor is one, and found no GPU of any hung rank."""
    program = (
        "import sys; sys.path.append(sys.argv[1]); from launcher.incidents.gpus import GpuEvidence; "
        "print(GpuEvidence(sys.argv[2] or None).begin({1: 'rank 0'}, 60, were_used=True).told())"
    )
    file = find_bindings()
    assert file is not None
    said = [
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, str(ROOT), bindings],
            capture_output=True,
            text=True,
            check=True,
            timeout=180,
        ).stdout
        for bindings in (file, "")
    ]
    assert said[1] == "[]\n"
    assert said[0] != said[1]  # NVML answers, or says that there is no driver


def test_a_driver_that_hangs_costs_the_bound_and_no_more_than_once(
    driver: NvmlStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait(180)
        driver.is_open = True

    monkeypatch.setattr(driver, "nvmlInit", hang)
    evidence = GpuEvidence()
    first = evidence.begin(RANKS, 0.01, were_used=True)
    assert first.told() == []
    assert hangs.wait(60)
    second = evidence.begin(RANKS, 60, were_used=True)
    assert second.told() == []  # at once: there is no room for a second look
    goes_on.set()
    assert first.is_done.wait(60)
    assert len(first.told()) == 2


def test_without_a_thread_nobody_is_asked(driver: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.processes.background.Background.start", lambda self: None)
    assert GpuEvidence().begin(RANKS, 60, were_used=True).told() == []
    assert driver.opened == 0


def test_a_machine_tells_of_gpus_first_since_the_surest_is_last(
    driver: NvmlStandIn, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MachineEvidence([str(tmp_path / "gone")], kernel_log=os.devnull, shared_memory=str(tmp_path))
    machine.gpu_users.add(0)
    try:
        first, *_, last = machine.facts(60, RANKS)
        assert first.startswith("GPU 0 (rank 3): ")
        assert last.startswith(f"{tmp_path}/gone cannot be looked at")
        assert not any(line.startswith("GPU") for line in machine.facts(60))
    finally:
        machine.close()


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_the_real_library_without_a_driver_says_so() -> None:
    (line,) = gpu_lines(importlib.import_module("pynvml"), RANKS)
    assert line.text.startswith("NVML does not start: NVML Shared Library Not Found")

"""GPUs through NVML: the real bindings, asked on a machine without a GPU, and fake answers behind their signatures."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.health import nvml as module
from launcher.health.check import Context, Machine
from launcher.health.nvml import NvmlCheck, has_bindings, has_gpus
from tests.launcher.health.conftest import asked

pynvml = pytest.importorskip("pynvml")


class FakeDriver:
    """Healthy GPUs; each test breaks one thing. Answers come through functions of the bindings' own signatures."""

    def __init__(self) -> None:
        self.uuids = ["GPU-aaaa-1", "GPU-bbbb-2"]
        self.is_open = False
        self.opened = 0
        self.answers: dict[tuple[str, int], Any] = {}
        """By function and GPU, what it returns or raises instead."""
        self.asked: set[str] = set()

    def nvmlInit(self) -> None:
        self.is_open, self.opened = True, self.opened + 1

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: str) -> int:
        assert migDevice == "MIG-1"
        return 1

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: object = None) -> object:
        return object()

    def nvmlDeviceGetRemappedRows(self, device: int) -> tuple[int, int, int, int]:
        return (3, 1, 0, 0)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: int) -> int:
        return 0

    def nvmlDeviceGetTotalEccErrors(self, handle: int, errorType: int, counterType: int) -> int:
        assert (errorType, counterType) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return 0

    def nvmlDeviceGetFieldValues(self, handle: int, fieldIds: list[int]) -> list[Any]:
        assert fieldIds == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        return [SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=SimpleNamespace(uiVal=0))]


NAMES = [name for name in vars(FakeDriver) if name.startswith("nvml")]


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()

    def behind(name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(pynvml, name))

        def call(*args: Any) -> Any:
            signature.bind(*args)
            assert driver.is_open or name == "nvmlInit"
            driver.asked.add(name)
            found = driver.answers.get((name, args[0])) if args and isinstance(args[0], int) else None
            found = driver.answers.get((name, -1), found)
            if isinstance(found, Exception):
                raise found
            return getattr(driver, name)(*args) if found is None else found

        return call

    for name in NAMES:
        monkeypatch.setattr(pynvml, name, behind(name))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return driver


# ---- the real bindings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_real_bindings_have_what_the_fake_driver_has_with_the_same_arguments(name: str):
    real = inspect.signature(getattr(pynvml, name)).parameters
    fake = inspect.signature(getattr(FakeDriver, name)).parameters
    assert [*fake][1:] == [*real]


def test_every_function_that_the_check_names_is_in_the_fake_driver():
    source = inspect.getsource(module)
    named = {word.strip('"') for word in source.replace("(", " ").replace(",", " ").replace(".", " ").split()}
    assert {word for word in named if hasattr(pynvml, word) and word.startswith("nvml")} == set(NAMES)


def test_the_real_constants_are_those_that_the_messages_say():
    actions = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION_")}
    assert actions["NVML_GPU_RECOVERY_ACTION_NONE"] == 0
    assert set(actions.values()) - {0} <= set(module._ACTIONS)  # older bindings know fewer
    assert "reset of the GPU" in module._ACTIONS[actions["NVML_GPU_RECOVERY_ACTION_GPU_RESET"]]
    assert "reboot of the node" in module._ACTIONS[actions["NVML_GPU_RECOVERY_ACTION_NODE_REBOOT"]]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_the_real_library_without_a_driver_is_told():
    answer = asked(NvmlCheck(60))
    assert answer is not None
    assert answer.startswith("NVML does not start: NVML Shared Library Not Found; see the driver")
    assert has_bindings()
    assert not has_gpus(Machine())


@pytest.mark.skipif(not os.path.exists("/dev/nvidia0"), reason="this machine has no GPU")
def test_the_real_gpus_of_this_machine_are_healthy():
    assert has_gpus(Machine())
    assert asked(NvmlCheck(60)) is None


def test_gpus_are_told_by_their_devices(tmp_path: Path):
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert not has_gpus(Machine(dev=str(tmp_path)))
    (tmp_path / "nvidia11").touch()
    assert has_gpus(Machine(dev=str(tmp_path)))


# ---- fake answers -------------------------------------------------------------------------------------------


def test_with_a_fake_driver_healthy_gpus_are_all_asked_everything_and_closed(fake_driver: FakeDriver):
    steps: list[str] = []
    check = NvmlCheck(60)
    assert asked(check, Context(tell=steps.append)) is None
    assert steps == ["importing pynvml", "nvmlInit", "GPU 0", "GPU 1", "nvmlShutdown"]
    assert fake_driver.asked >= {name for name in NAMES if "ByUUID" not in name and "Mig" not in name}
    assert not fake_driver.is_open
    assert asked(check) is None
    assert fake_driver.opened == 2


@pytest.mark.parametrize(
    ("call", "answer", "expected"),
    [
        (
            "nvmlDeviceGetRemappedRows",
            (0, 9, 0, 1),
            "GPU 1 has memory that could not be replaced (row remapper failure)",
        ),
        ("nvmlDeviceGetRemappedRows", (0, 1, 1, 0), "GPU 1 waits for a reset to replace damaged memory"),
        ("nvmlDeviceGetRetiredPagesPendingStatus", 1, "GPU 1 waits for a reset to retire damaged memory"),
        ("nvmlDeviceGetTotalEccErrors", 7, "GPU 1 has had 7 uncorrected ECC errors since its last reset"),
        (
            "nvmlDeviceGetFieldValues",
            [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))],
            "GPU 1 is in a state in which its driver asks for a reboot of the node",
        ),
        ("nvmlDeviceGetHandleByIndex", pynvml.NVMLError(15), "GPU 1 does not answer: GPU is lost; drain the node"),
        ("nvmlDeviceGetMemoryInfo", pynvml.NVMLError(15), "GPU 1 does not answer: GPU is lost; drain the node"),
        ("nvmlDeviceGetRemappedRows", pynvml.NVMLError(16), "GPU 1 does not answer: GPU requires restart"),
        ("nvmlDeviceGetUUID", pynvml.NVMLError(999), "GPU 1 does not answer: Unknown Error"),
    ],
)
def test_with_a_fake_driver_each_damage_is_told(call: str, answer: Any, expected: str, fake_driver: FakeDriver):
    fake_driver.answers[call, 1] = answer
    found = asked(NvmlCheck(60))
    assert found is not None
    assert found.startswith(expected)
    assert not fake_driver.is_open


@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "INVALID_ARGUMENT"])
def test_with_a_fake_driver_what_a_device_does_not_know_is_no_damage(code: str, fake_driver: FakeDriver):
    error = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{code}"))
    for name in NAMES:
        if name.startswith("nvmlDeviceGet") and ("Rows" in name or "Pages" in name or "Ecc" in name or "Field" in name):
            fake_driver.answers[name, -1] = error
    assert asked(NvmlCheck(60)) is None


def test_with_a_fake_driver_an_unknown_field_is_no_damage(fake_driver: FakeDriver):
    value = SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED, value=SimpleNamespace(uiVal=9))
    fake_driver.answers["nvmlDeviceGetFieldValues", 0] = [value]
    assert asked(NvmlCheck(60)) is None


@pytest.mark.parametrize(
    ("visible", "is_bad", "expected"),
    [
        ("0", 1, None),
        ("1", 1, "GPU 1 has had"),
        ("0, 1", 1, "GPU 1 has had"),
        ("GPU-bb", 1, "GPU-bb has had"),
        ("GPU-aaaa-1", 1, None),
        ("MIG-1", 1, "the GPU of MIG-1 has had"),
        ("-1", 1, None),
        ("-1,1", 1, None),
        ("", 1, None),
        ("5", 1, "GPU 5, which CUDA_VISIBLE_DEVICES names, is not there; see dmesg"),
        ("GPU-cc", 1, "GPU-cc, which CUDA_VISIBLE_DEVICES names, is not there"),
        (None, 0, "GPU 0 has had"),
    ],
)
def test_with_a_fake_driver_only_the_gpus_of_the_job_count(
    visible: str | None, is_bad: int, expected: str | None, fake_driver: FakeDriver
):
    fake_driver.answers["nvmlDeviceGetTotalEccErrors", is_bad] = 1
    found = asked(NvmlCheck(60, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    assert (found or "").startswith(expected or "None") if expected else found is None

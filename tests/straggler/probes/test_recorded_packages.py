"""What we call of cupti-python and nvidia-ml-py, against what the published packages have.

The recording holds the oldest versions that the extra ``gpu`` admits and newer ones of both majors. Where a package is
installed, the recording is compared with it.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import straggler.testing as stand_ins
from straggler.measurement.measured import STATE_FIELDS
from straggler.probes.cuda_events import Event, EventBackend
from straggler.probes.cupti_backend import CuptiBackend, CuptiPython
from straggler.probes.nvml import NvmlBackend, _PyNvml
from tests.straggler.probes.record_gpu_packages import CUPTI_FUNCTIONS, NVML_NAMES, READERS
from tests.straggler.probes.recorded_packages import CUPTI_VERSIONS, NVML_VERSIONS, RECORDED, RecordedPackage, signature

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
RENEW = "renew the recording: python tests/straggler/probes/record_gpu_packages.py"
OPTIONAL = {
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",  # since 12.570; launcher/health/nvml.py looks whether it is there
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # the name before nvmlDeviceGetCurrentClocksEventReasons
}
OF_THE_DEVICE = [field for field in STATE_FIELDS if not field.startswith(("cpu_", "loader_"))]


def sources():
    files = [*ROOT.glob("straggler/**/*.py"), *ROOT.glob("launcher/**/*.py"), *ROOT.glob("benchmarks/gpu/*.py")]
    return {file: ast.parse(file.read_text()) for file in files if "nvml" in file.read_text()}


def test_both_majors_and_the_oldest_admitted_version_are_recorded():
    assert {version.split(".")[0] for version in CUPTI_VERSIONS} == {"12", "13"}
    assert {version.split(".")[0] for version in NVML_VERSIONS} == {"12", "13"}
    setup = (ROOT / "setup.cfg").read_text()
    assert "cupti-python>=12.6;" in setup
    assert "12.6.0" in CUPTI_VERSIONS
    assert "nvidia-ml-py>=12.535\n" in setup
    assert any(version.startswith("12.535.") for version in NVML_VERSIONS)


@pytest.mark.parametrize("version", CUPTI_VERSIONS)
def test_every_call_of_cupti_fits_this_version(version):
    module = RecordedPackage("cupti-python", version)
    backend = CuptiPython(module)
    backend.register(lambda records: None)
    backend.enable()
    backend.flush()
    assert backend.dropped() == 0
    backend.disable()
    assert set(module.called) == set(CUPTI_FUNCTIONS)


@pytest.mark.parametrize("version", CUPTI_VERSIONS)
def test_the_fields_of_a_record_are_those_of_this_version(version):
    for name, fields in RECORDED["cupti-python"][version]["records"].items():
        completed, kept = [], []
        binding = SimpleNamespace(activity_register_callbacks=lambda requested, done, to=completed: to.append(done))
        CuptiPython(RecordedPackage("cupti-python", version, binding)).register(kept.extend)
        value = {"kind": 10, "name": "gemm", "start": 1, "end": 5}
        completed[0]([SimpleNamespace(**{field: value[field] for field in fields})])
        assert kept == [("gemm", 1, 5)], name


@pytest.mark.parametrize("version", NVML_VERSIONS)
def test_every_call_of_nvml_fits_this_version(version, monkeypatch):
    answers = SimpleNamespace(nvmlDeviceGetPowerUsage=lambda handle: 700_000)
    module = RecordedPackage("nvidia-ml-py", version, answers)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    backend = _PyNvml()
    assert backend.unavailable_because() == ""
    found = backend.read()
    assert sorted(found) == sorted(OF_THE_DEVICE)
    assert found["power_w"] == 700.0
    backend.close()
    assert module.called[-1] == "nvmlShutdown"


@pytest.mark.parametrize("name", ["GPU-1", "MIG-1"])
@pytest.mark.parametrize("version", NVML_VERSIONS)
def test_a_device_that_is_named_by_its_uuid_is_asked_by_it(version, name, monkeypatch):
    module = RecordedPackage("nvidia-ml-py", version)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert _PyNvml().unavailable_because() == ""
    assert ("nvmlDeviceGetHandleByUUID" in module.called) is not torch.cuda.is_available()


def test_every_name_of_nvml_in_the_sources_is_recorded():
    used = set()
    for file, tree in sources().items():
        used |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        used |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert used, file
    used = {name for name in used if re.fullmatch(r"nvml(Device|System|Init|Shutdown)\w*|NVML_\w+|NVMLError\w*", name)}
    assert used == set(NVML_NAMES), f"add what is new to NVML_NAMES, and {RENEW}"


@pytest.mark.parametrize("version", NVML_VERSIONS)
def test_every_version_has_every_name_that_is_not_looked_for(version):
    recorded = RECORDED["nvidia-ml-py"][version]
    has = {*recorded["functions"], *recorded["values"], *recorded["exceptions"]}
    assert set(NVML_NAMES) - has <= OPTIONAL


@pytest.mark.parametrize("version", NVML_VERSIONS)
def test_every_direct_call_of_nvml_in_the_sources_fits(version):
    functions, seen = RECORDED["nvidia-ml-py"][version]["functions"], 0
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in functions:
                keywords = {keyword.arg: None for keyword in node.keywords}
                try:
                    signature(functions[node.func.attr]).bind(*node.args, **keywords)
                except TypeError as error:
                    pytest.fail(f"{file}:{node.lineno}: {node.func.attr}: {error}")
                seen += 1
    assert seen > 5


@pytest.mark.parametrize("package", sorted(READERS))
def test_the_recording_is_what_the_installed_package_has(package):
    module = {"cupti-python": "cupti", "nvidia-ml-py": "pynvml"}[package]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{package} is not installed")
    version = importlib.metadata.version(package)
    versions = RECORDED[package]
    nearest = version if version in versions else max(versions, key=lambda v: [int(part) for part in v.split(".")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cupti-python 12.8 imports a module that is deprecated
        has = READERS[package]()
    assert has == versions[nearest], f"{package} {version} is not as {nearest} was recorded; {RENEW}"


def public(made):
    return {
        name: [p for p in inspect.signature(value).parameters if p != "self"]
        for name, value in vars(made).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("protocol", "made"),
    [
        (CuptiBackend, stand_ins.RecordedCuptiBackend),
        (CuptiBackend, CuptiPython),
        (NvmlBackend, stand_ins.FakeNvmlBackend),
        (NvmlBackend, _PyNvml),
        (EventBackend, stand_ins.FakeCudaEvents),
    ],
)
def test_a_stand_in_and_the_real_backend_have_one_interface(protocol, made):
    has = public(made)
    assert {name: has[name] for name in public(protocol)} == public(protocol)


def test_the_event_of_torch_takes_what_ours_takes():
    for name, arguments in public(Event).items():
        inspect.signature(getattr(torch.cuda.Event, name)).bind(None, *arguments)
        inspect.signature(getattr(stand_ins._FakeEvent, name)).bind(None, *arguments)

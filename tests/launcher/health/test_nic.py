"""Links: real interfaces in a network namespace, InfiniBand as sysfs would show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.health.check import Context, Machine
from launcher.health.nic import NicCheck
from tests.launcher.health.conftest import asked

SETUP = """
mount -t sysfs none /sys
ip link add one type veth peer name other
ip link set lo up
{more}
"""
PROGRAM = """
from launcher.health.check import Context
from launcher.health.nic import NicCheck
print(NicCheck(60, {names}).check(Context()))
"""
DEFAULT_ROUTE = "ip addr add 10.7.0.1/24 dev one; ip link set other up; ip route add default via 10.7.0.2"


@pytest.mark.parametrize(
    ("more", "names", "expected"),
    [
        ("", ("one",), "interface one is switched off (operstate 'down'); 'ip link set one up'"),
        (
            "ip link set one up",
            ("one",),
            "interface one has no link: operstate 'lowerlayerdown', carrier 0; see the cable",
        ),
        ("ip link set one up; ip link set other up", ("one", "other", "lo"), "None"),
        ("", ("eth7",), "there is no interface eth7; there are: lo, one, other; see its driver (dmesg)"),
        ("", (), "there is neither a default route nor InfiniBand; name the interface, as nic:eth0 in health_checks"),
        (f"ip link set one up; {DEFAULT_ROUTE}", (), "None"),
        (
            f"ip link set one up; {DEFAULT_ROUTE}; ip link set other down",
            (),
            "interface one has no link: operstate 'lowerlayerdown', carrier 0",
        ),
        (
            "ip link set one up; ip link set other up; ip -6 route add default dev one; ip link set other down",
            (),
            "interface one has no link: operstate 'lowerlayerdown', carrier 0",
        ),
    ],
)
def test_real_interfaces(more: str, names: tuple[str, ...], expected: str, in_namespaces: Callable[..., str]):
    answer = in_namespaces("-n -m", SETUP.format(more=more), PROGRAM.format(names=names))
    assert answer.startswith(expected)


@pytest.fixture
def ports(tmp_path: Path) -> Callable[..., Context]:
    """Write the state of ports, as ``mlx5_0/1="4: ACTIVE"``."""

    def write(layer: str = "InfiniBand", **states: str) -> Context:
        for name, state in states.items():
            device, _, number = name.rpartition("_")
            folder = tmp_path / "class" / "infiniband" / device / "ports" / number
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "state").write_text(f"{state}\n")
            (folder / "link_layer").write_text(f"{layer}\n")
        return Context(machine=Machine(proc=str(tmp_path / "proc"), sys=str(tmp_path)))

    return write


def test_with_a_fake_sysfs_each_infiniband_device_needs_one_active_port(ports: Callable):
    check = NicCheck(60)
    assert asked(check, ports(mlx5_0_1="4: ACTIVE", mlx5_0_2="1: DOWN", mlx5_1_1="4: ACTIVE")) is None
    answer = asked(NicCheck(60), ports(mlx5_1_1="2: INIT"))
    assert answer is not None
    assert answer.startswith("no port of mlx5_1 is active: mlx5_1/1 is '2: INIT'; see the cable")


def test_with_a_fake_sysfs_a_port_that_was_active_must_stay_so(ports: Callable):
    check = NicCheck(60)
    assert asked(check, ports(mlx5_0_1="4: ACTIVE", mlx5_0_2="4: ACTIVE")) is None
    answer = asked(check, ports(mlx5_0_2="1: DOWN"))
    assert answer is not None
    assert answer.startswith("port mlx5_0/2 is '1: DOWN' and was active before")
    assert asked(check, ports(mlx5_0_2="4: ACTIVE")) is None


def test_with_a_fake_sysfs_an_unused_port_of_ethernet_is_fine_until_it_was_active(ports: Callable):
    check = NicCheck(60)
    assert asked(check, ports("Ethernet", mlx5_0_1="1: DOWN", mlx5_1_1="4: ACTIVE")) is None
    answer = asked(check, ports("Ethernet", mlx5_1_1="1: DOWN"))
    assert answer is not None
    assert "mlx5_1/1" in answer


@pytest.mark.parametrize("name", ["mlx5_0", "mlx5_0/2"])
def test_with_a_fake_sysfs_a_port_that_is_named_must_be_active(name: str, ports: Callable):
    context = ports(mlx5_0_1="4: ACTIVE", mlx5_0_2="1: DOWN")
    answer = asked(NicCheck(60, (name,)), context)
    assert answer is not None
    assert answer.startswith("port mlx5_0/2 is '1: DOWN'; see")
    assert asked(NicCheck(60, ("mlx5_0/1",)), context) is None


def test_with_a_fake_proc_an_interface_that_has_vanished_is_told(tmp_path: Path):
    (tmp_path / "net").mkdir()
    header = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    (tmp_path / "net" / "route").write_text(f"{header}gone0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n")
    answer = asked(NicCheck(60), Context(machine=Machine(proc=str(tmp_path), sys=str(tmp_path))))
    assert answer is not None
    assert answer.startswith("interface gone0, which carries the default route, is not in")

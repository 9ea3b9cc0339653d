"""Whether network interfaces and InfiniBand ports have a link, as sysfs shows it.

Sources: the kernel's ``Documentation/ABI/testing/sysfs-class-net`` (``operstate`` as in RFC 2863, ``carrier``) and
``Documentation/ABI/stable/sysfs-class-infiniband``.

Without names it looks at the interfaces of default routes and at InfiniBand. Many adapters have a second port that
nobody has connected, so each InfiniBand device needs one active port, and a port that was active once must stay so. For
ports of Ethernet (RoCE) without a name only the second holds.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from launcher.health.check import Context, Machine

__all__ = ["NicCheck"]

_ACTIVE = "4"
_FINE = ("up", "unknown")
"""Drivers without the notion of a link, as of loopback and tunnels, say ``unknown``; ``carrier`` counts as well."""
_IS_UP = 0x1
_IS_REJECTING = 0x200
_FIX = "see the cable, the switch's port and dmesg; 'ip link'"


class _Port(NamedTuple):
    device: str
    number: str
    state: str
    is_infiniband: bool

    def __str__(self) -> str:
        return f"{self.device}/{self.number}"


class NicCheck:
    """Links.

    Args:
        bound_seconds: How long an answer may take.
        names: Interfaces (``eth0``), devices of InfiniBand (``mlx5_0``) or their ports (``mlx5_0/1``); nothing for
            those that the module names.
    """

    name = "nic"

    def __init__(self, bound_seconds: float, names: tuple[str, ...] = ()) -> None:
        self.bound_seconds, self._names = bound_seconds, names
        self._was_active: set[str] = set()

    def check(self, context: Context) -> str | None:
        """Return the first link that is down."""
        machine = context.machine
        ports = _ports(machine)
        if self._names:
            return next((bad for each in self._names if (bad := _named(machine, ports, each)) is not None), None)
        interfaces = _of_default_routes(machine)
        if not interfaces and not ports:
            return "there is neither a default route nor InfiniBand; name the interface, as nic:eth0 in health_checks"
        for interface in interfaces:
            context.tell(f"interface {interface}")
            if (bad := _interface(machine, interface)) is not None:
                return bad
        return self._of_ports(ports)

    def _of_ports(self, ports: list[_Port]) -> str | None:
        lost = [port for port in ports if str(port) in self._was_active and not _is_active(port)]
        self._was_active.update(str(port) for port in ports if _is_active(port))
        if lost:
            return f"port {lost[0]} is '{lost[0].state}' and was active before; {_FIX}, 'ibstat'"
        for device in dict.fromkeys(port.device for port in ports if port.is_infiniband):
            own = [port for port in ports if port.device == device]
            if not any(map(_is_active, own)):
                states = ", ".join(f"{port} is '{port.state}'" for port in own)
                return f"no port of {device} is active: {states}; {_FIX}, 'ibstat'"
        return None


def _named(machine: Machine, ports: list[_Port], name: str) -> str | None:
    if os.path.isdir(os.path.join(machine.sys, "class", "net", name)):
        return _interface(machine, name)
    own = [port for port in ports if name in (port.device, str(port))]
    if own:
        bad = [port for port in own if not _is_active(port)]
        return f"port {bad[0]} is '{bad[0].state}'; {_FIX}, 'ibstat'" if bad else None
    there = [*_listed(os.path.join(machine.sys, "class", "net")), *map(str, ports)]
    return f"there is no interface {name}; there are: {', '.join(there) or 'none'}; see its driver (dmesg)"


def _interface(machine: Machine, name: str) -> str | None:
    folder = os.path.join(machine.sys, "class", "net", name)
    if not os.path.isdir(folder):
        return f"interface {name}, which carries the default route, is not in {os.path.dirname(folder)}; see dmesg"
    state, flags = _read(folder, "operstate"), _read(folder, "flags")
    if flags and not int(flags, 16) & _IS_UP:
        return f"interface {name} is switched off (operstate '{state}'); 'ip link set {name} up'"
    carrier = _read(folder, "carrier")
    if state not in _FINE or carrier == "0":
        return f"interface {name} has no link: operstate '{state}', carrier {carrier or 'unknown'}; {_FIX}"
    return None


def _of_default_routes(machine: Machine) -> list[str]:
    """Return the interfaces of default routes, from ``net/route`` and ``net/ipv6_route`` in proc(5)."""
    found = []
    for line in _read(machine.proc, "net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and int(fields[3], 16) & _IS_UP:
            found.append(fields[0])
    for line in _read(machine.proc, "net/ipv6_route").splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00":
            flags = int(fields[8], 16)
            if flags & _IS_UP and not flags & _IS_REJECTING and fields[9] != "lo":
                found.append(fields[9])
    return list(dict.fromkeys(found))


def _ports(machine: Machine) -> list[_Port]:
    root = os.path.join(machine.sys, "class", "infiniband")
    return [
        _Port(device, number, _read(folder, "state"), _read(folder, "link_layer") in ("InfiniBand", ""))
        for device in _listed(root)
        for number in _listed(os.path.join(root, device, "ports"))
        for folder in [os.path.join(root, device, "ports", number)]
    ]


def _is_active(port: _Port) -> bool:
    return port.state.partition(":")[0] == _ACTIVE


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(folder: str, name: str) -> str:
    """Read a file as text; nothing where there is none. ``carrier`` of an interface that is off is an error."""
    try:
        with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""

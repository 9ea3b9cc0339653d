"""Deliberate mistakes in the checks of a node's health, and in what makes a node unhealthy."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_HEALTH"]

_H = "launcher/health/"
_T = "tests/launcher/health/"


def _mutant(name: str, module: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"{_H}{module}.py", old, new, tuple(f"{_T}test_{each}.py" for each in tests or (module,)))


MUTANTS_OF_HEALTH = (
    # ---- one check ----
    _mutant(
        "a stuck check is started again",
        "watch",
        "        if run is not None and run.answer is None:\n            self._is_refused",
        "        if False:\n            self._is_refused",
    ),
    _mutant(
        "a stuck check is waited for without end",
        "watch",
        "if self._is_refused or not self.seconds_left():",
        "if self._is_refused:",
    ),
    _mutant(
        "a late answer counts for the next look",
        "watch",
        "if run.answer is not None and not self._is_refused:",
        "if run.answer is not None:",
    ),
    _mutant(
        "a look that somebody else has begun counts as stuck",
        "watch",
        "run.is_cancelled or not self.seconds_left()\n",
        "True\n",
    ),
    _mutant(
        "a check that exits gives no answer", "watch", "except BaseException as error:", "except Exception as error:"
    ),
    _mutant("a check is not told that nobody waits", "watch", "self._run.is_cancelled = True", "pass"),
    _mutant(
        "a thread that is refused ends the launcher",
        "watch",
        "except RuntimeError as error:",
        "except ValueError as error:",
    ),
    # ---- the node ----
    _mutant("one failure is enough", "runner", "_FAILURES_IN_A_ROW = 2", "_FAILURES_IN_A_ROW = 1"),
    _mutant(
        "failures are counted over healthy looks",
        "runner",
        "            self.failures = 0\n            return None",
        "            return None",
    ),
    _mutant(
        "a finding is told at every look", "runner", "finding if self.failures == _F", "finding if self.failures >= _F"
    ),
    _mutant("one failure before joining is enough", "runner", "        failed = self._look(failed)\n", ""),
    _mutant(
        "all checks are looked at again before joining", "runner", "self._look(failed)\n", "self._look(self._watches)\n"
    ),
    _mutant("a slow check gets no second look", "runner", "        self._let_come_back(failed)\n", ""),
    _mutant(
        "findings are told after a stop",
        "runner",
        "                if session.is_over:\n                    return\n                if finding",
        "                if finding",
    ),
    _mutant(
        "a stop leaves the thread looking",
        "runner",
        "                session.is_over = True\n",
        "                pass\n",
    ),
    _mutant("a stop leaves a command running", "runner", "                watch.cancel()\n", "                pass\n"),
    _mutant(
        "a check that was cancelled counts as failed",
        "runner",
        "            self._changed.wait_for(lambda: not any(watch.is_ending for watch in self._watches), "
        "_CANCEL_SECONDS)\n",
        "            pass\n",
    ),
    _mutant(
        "a listener that raises ends the looks",
        "runner",
        "        except Exception as error:  # noqa: BLE001 - the next",
        "        except ValueError as error:  # noqa: BLE001 - the next",
    ),
    _mutant(
        "a second start looks twice",
        "runner",
        "if (session := self._session) is not None:\n            with",
        "if False:\n            with",
    ),
    _mutant("nodes look all at once", "runner", "random.uniform(0.5, 1.0)", "1.0"),
    _mutant(
        "checks before joining run one after the other",
        "runner",
        "            for watch in watches:\n                watch.begin()\n",
        "            for watch in watches:\n                watch.begin()\n"
        "                self._changed.wait_for(lambda each=watch: each.answer() is not None, 15)\n",
    ),
    # ---- the command ----
    _mutant(
        "only the shell is killed",
        "command",
        "if end_sessions([process.pid], _KILL_SECONDS):",
        "process.kill()\n            if False:",
    ),
    _mutant("any end is healthy", "command", "        if code == 0:", "        if True:"),
    _mutant(
        "a command that did not end is healthy",
        "command",
        "        if not has_ended or code is None:",
        "        if False:",
    ),
    _mutant(
        "a command that cannot be killed is started again",
        "command",
        "if (left := self._left) is not None and (",
        "if (left := self._left) is not None and False and (",
    ),
    _mutant(
        "a command that cannot be killed is remembered for ever",
        "command",
        "(left.poll() is None or session_members([left.pid]))",
        "True",
    ),
    _mutant(
        "a command gets no variables", "command", "env={**os.environ, **context.environment()}", "env={**os.environ}"
    ),
    _mutant(
        "a command gets nothing of our environment",
        "command",
        "env={**os.environ, **context.environment()}",
        "env={**context.environment()}",
    ),
    _mutant("a command has our input", "command", "stdin=subprocess.DEVNULL", "stdin=None"),
    _mutant("a command goes on when nobody waits", "command", " and not context.is_cancelled():", ":"),
    Mutant(
        "a command's first lines are kept",
        "launcher/processes/command_output.py",
        "[-_TAIL_BYTES:]",
        "[:_TAIL_BYTES]",
        (f"{_T}test_command.py",),
    ),
    _mutant("errors of a command are not read", "command", "stderr=subprocess.STDOUT", "stderr=subprocess.DEVNULL"),
    _mutant(
        "what a command leaves is waited for",
        "command",
        "            if pidfd in ready:\n",
        "            if pidfd in ready and output.has_ended:\n",
    ),
    # ---- folders ----
    _mutant("a file is not synced", "paths", "            if self._syncs:\n", "            if False:\n"),
    _mutant("shared memory is synced", "paths", "least_bytes, syncs=False)", "least_bytes, syncs=True)"),
    _mutant(
        "a file stays after an error",
        "paths",
        "                os.unlink(path)\n            raise",
        "                pass\n            raise",
    ),
    _mutant("a file stays", "paths", "            raise\n        os.unlink(path)\n", "            raise\n"),
    _mutant("room is not looked at", "paths", "if free < self._least_bytes:", "if False:"),
    _mutant("files are not counted", "paths", "if found.f_files and found.f_favail < _LEAST_INODES:", "if False:"),
    _mutant("no number of files counts as full", "paths", "if found.f_files and found", "if found"),
    _mutant("nothing is written", "paths", "            self._write()\n", "            pass\n"),
    # ---- memory ----
    _mutant("the most memory counts", "memory", "min(rooms)", "max(rooms)"),
    _mutant("the page cache counts as used", "memory", "limit - usage + cached", "limit - usage"),
    Mutant(
        "groups above are not looked at",
        "launcher/processes/control_groups.py",
        "range(len(parts), -1, -1)",
        "range(len(parts), len(parts) - 1, -1)",
        ("tests/launcher/health/test_memory.py",),
    ),
    _mutant(
        "groups are not looked at",
        "memory",
        "rooms = [*_of_machine(context.machine), *_of_groups(context.machine)]",
        "rooms = [*_of_machine(context.machine)]",
    ),
    _mutant("exactly enough is too little", "memory", "if available >= self", "if available > self"),
    # ---- links ----
    _mutant("a lost carrier is fine", "nic", 'if state not in _FINE or carrier == "0":', 'if state == "x":'),
    _mutant("an interface that is off has no cable", "nic", "if flags and not int(flags, 16) & _IS_UP:", "if False:"),
    _mutant("names are ignored", "nic", "        if self._names:\n", "        if False:\n"),
    _mutant("a port may go down", "nic", "        if lost:\n", "        if False:\n"),
    _mutant("all ports of a device must be active", "nic", "if not any(map(", "if not all(map("),
    _mutant("no port of a device need be active", "nic", "if not any(map(", "if False and not any(map("),
    _mutant("unused Ethernet must be active", "nic", "for port in ports if port.is_infiniband)", "for port in ports)"),
    _mutant(
        "routes of IPv6 are not looked at", "nic", "                found.append(fields[9])\n", "                pass\n"
    ),
    _mutant(
        "an interface that has vanished is fine",
        "nic",
        '    if not os.path.isdir(folder):\n        return f"interface',
        '    if False:\n        return f"interface',
    ),
    # ---- GPUs ----
    _mutant("a failed replacement is fine", "nvml", "    if has_failed:\n", "    if False:\n"),
    _mutant("a pending replacement is fine", "nvml", "    if is_pending:\n", "    if False:\n"),
    _mutant(
        "pending and failed are confused", "nvml", "_, _, is_pending, has_failed =", "_, _, has_failed, is_pending ="
    ),
    _mutant(
        "pages that wait are fine",
        "nvml",
        'if _known(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle):',
        'if _known(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle) is False:',
    ),
    _mutant("errors of all time count", "nvml", "nvml.NVML_VOLATILE_ECC", "1"),
    _mutant("ECC errors are fine", "nvml", "    if errors := _known(", "    if False and _known("),
    _mutant("a recovery that is asked for is fine", "nvml", "    if action:\n", "    if False:\n"),
    _mutant("an unknown field counts", "nvml", " or values[0].nvmlReturn != nvml.NVML_SUCCESS:", ":"),
    _mutant("what a device does not know is damage", "nvml", "            nvml.NVML_ERROR_NOT_SUPPORTED,\n", ""),
    _mutant(
        "a lost GPU is not known",
        "nvml",
        "            nvml.NVML_ERROR_NOT_SUPPORTED,\n",
        "            nvml.NVML_ERROR_NOT_SUPPORTED, 15, 16,\n",
    ),
    _mutant("NVML stays open", "nvml", "            shut_down(nvml)\n", "            pass\n"),
    _mutant("GPUs of other jobs count", "nvml", "    if visible is None:\n", "    if True:\n"),
    _mutant(
        "a missing GPU is fine",
        "nvml",
        "                if handle is None:\n                    return",
        "                if handle is None:\n                    continue\n                    return",
    ),
    _mutant("the wrong GPU is named", "nvml", '        error.place = f"GPU {index}"\n', ""),
    # ---- installed ones ----
    _mutant(
        "an installed check has no bound of its own",
        "installed",
        "            self._own_bound = float(bound)\n",
        "            pass\n",
        "installed_checks",
    ),
    _mutant(
        "an import uses up the check's time",
        "installed",
        "            self.bound_seconds = time.monotonic() - began + self._own_bound",
        "            self.bound_seconds = self.bound_seconds",
        "installed_checks",
    ),
    _mutant(
        "one that was named is left out",
        "installed",
        "                if self._is_named:\n",
        "                if False:\n",
        "installed_checks",
    ),
    _mutant(
        "one that was not named has failed",
        "installed",
        "                if self._is_named:\n",
        "                if True:\n",
        "installed_checks",
    ),
    _mutant(
        "a check that exits at its import escapes",
        "installed",
        "except (Exception, SystemExit) as error:",
        "except Exception as error:",
        "installed_checks",
    ),
    # ---- settings ----
    _mutant(
        "none is the default",
        "settings",
        "    if settings.checks == ():\n        return Chosen((), ())\n",
        "",
        "health_settings",
    ),
    _mutant(
        "a command is forgotten",
        "settings",
        '        wanted.setdefault("command", [])\n',
        "        pass\n",
        "health_settings",
    ),
    _mutant(
        "GPUs are left out",
        "settings",
        '                automatic.append("nvml")\n',
        "                pass\n",
        "health_settings",
    ),
    _mutant(
        "the variable for plugins is ignored",
        "settings",
        "config.load_plugins and switch not in _NO,",
        "config.load_plugins,",
        "health_settings",
    ),
    _mutant(
        "installed checks cannot be switched off",
        "settings",
        "installed_checks() if settings.load_installed else ()",
        "installed_checks()",
        "installed_checks",
    ),
    _mutant(
        "an installed check takes a built-in's place",
        "settings",
        "if offer.name in (*_BUILT_IN, *offers):",
        "if offer.name in offers:",
        "installed_checks",
    ),
    _mutant(
        "the log folder is forgotten",
        "settings",
        "[*own, *(_folder(each, seconds) for",
        "[*(_folder(each, seconds) for",
        "health_settings",
    ),
    _mutant("a size of a path is forgotten", "settings", "path, seconds, least)", "path, seconds)", "health_settings"),
    Mutant(
        "none means the default",
        "resilience_core/config/node_values.py",
        '_NOTHING - {"none"}',
        "_NOTHING",
        (f"{_T}test_health_settings.py",),
    ),
    Mutant(
        "an interval may be anything",
        "resilience_core/config/node_values.py",
        "return duration(value, 1, 86400)",
        "return duration(value)",
        (f"{_T}test_health_settings.py",),
    ),
    Mutant(
        "a bound may be anything",
        "resilience_core/config/node_values.py",
        "return duration(value, 0.1, 3600)",
        "return duration(value)",
        (f"{_T}test_health_settings.py",),
    ),
    _mutant(
        "a spare that has failed a look waits a whole interval for the second",
        "runner",
        "_AGAIN_SECONDS if self._is_waiting else interval_seconds",
        "interval_seconds",
        "runner",
    ),
    _mutant(
        "one look that has not ended is two failures",
        "runner",
        "        if self.watch.is_busy:  # else",
        "        if False:  # else",
        "runner",
    ),
    Mutant(
        "a part of the log folder's path is taken for a size",
        "launcher/health/settings.py",
        'else [FolderCheck(f"paths:{context.log_dir}", context.log_dir, seconds)]',
        "else [_folder(context.log_dir, seconds)]",
        ("tests/launcher/health/test_health_settings.py",),
    ),
)

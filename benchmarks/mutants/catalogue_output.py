"""Deliberate mistakes in what goes to the log folder and in what is given back where it does not answer."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_OUTPUT"]

MUTANTS_OF_OUTPUT = (
    Mutant(
        "what a zygote has forked is left to whoever adopts it",
        "launcher/cli.py",
        "    Orphans(lambda: ()).reap(())\n",
        "",
        ("tests/e2e/test_launcher_end.py",),
    ),
    Mutant(
        "a launcher that a file system keeps keeps its ports as well",
        "launcher/processes/stuck_threads.py",
        '.startswith("socket:"):',
        '.startswith("no socket:"):',
        ("tests/launcher/processes/test_stuck_threads.py",),
    ),
    Mutant(
        "events go on into a file that was removed",
        "launcher/records/event_log.py",
        "        if status.st_nlink and not self._is_elsewhere(status):\n",
        "        if True:\n",
        ("tests/launcher/records/test_event_log.py",),
    ),
    Mutant(
        "a file of events that was removed is missed until the next event",
        "launcher/agent/generation.py",
        "        self._resources.events.look_after()\n",
        "",
        ("tests/e2e/test_reports.py",),
    ),
    Mutant(
        "lines that were cut off from a file of events are not missed",
        "launcher/records/event_log.py",
        "            if status.st_size < self._size:\n",
        "            if False:\n",
        ("tests/launcher/records/test_event_log.py",),
    ),
    Mutant(
        "a file of events that is removed again and again is said each time",
        "launcher/records/event_log.py",
        "        if self.made_anew <= _MOST_SAID:\n",
        "        if True:\n",
        ("tests/launcher/records/test_event_log.py",),
    ),
    Mutant(
        "what a file of events lacks that was removed twice is not said",
        "launcher/records/event_log.py",
        'lacks = f", without {self.missing} line(s)" if self.missing else ""\n            last',
        'lacks = ""\n            last',
        ("tests/launcher/records/test_event_log.py",),
    ),
    Mutant(
        "a third run of one name, node and pid is refused",
        "launcher/records/event_log.py",
        "for number in range(2, _MOST_FILES)",
        "for number in range(2, 2)",
        ("tests/launcher/records/test_event_log.py",),
    ),
    Mutant(
        "events of an unknown version are read as if they were of ours",
        "launcher/records/event_files.py",
        'check_version(path, first.get("version", 1), FORMAT_VERSION)',
        "pass",
        ("tests/launcher/records/test_event_log.py",),
    ),
    Mutant(
        "an incident of an unknown version is read as if it were of ours",
        "launcher/incidents/incident.py",
        'check_version("the incident", document.get("version"), FORMAT_VERSION)',
        "pass",
        ("tests/launcher/incidents/test_incident.py",),
    ),
    Mutant(
        "runs without a name share a log folder",
        "launcher/agent/job.py",
        "    if job.arguments.rdzv_id != UNNAMED_RUN:\n",
        "    if True:\n",
        ("tests/launcher/records/test_run_folders.py",),
    ),
    Mutant(
        "an installed plugin that leaves while it is imported ends the training",
        "resilience_core/plugins/installed.py",
        "        except BaseException as error:\n            if isinstance(error, KeyboardInterrupt) or",
        "        except Exception as error:\n            if isinstance(error, KeyboardInterrupt) or",
        ("tests/resilience_core/plugins/test_installed.py",),
    ),
    Mutant(
        "what a signal handler raises while plugins load is taken for the plugin's",
        "resilience_core/plugins/installed.py",
        "    return any(frame.f_code in handlers for",
        "    return False and any(frame.f_code in handlers for",
        ("tests/resilience_core/plugins/test_installed.py",),
    ),
    Mutant(
        "the switch of installed plugins does not reach the ranks",
        "launcher/standalone.py",
        '        return environment if self._load_plugins else {**environment, PLUGINS_VARIABLE: "0"}\n',
        "        return environment\n",
        ("tests/launcher/test_standalone.py",),
    ),
    Mutant(
        "a misspelt keyword of the configuration is Python's own error",
        "resilience_core/config/setting.py",
        "        for key in given.keys() - names:\n",
        "        for key in ():\n",
        ("tests/resilience_core/config/test_schema.py",),
    ),
)

"""Deliberate mistakes in how a forked process becomes a worker, and in what is done where evidence cannot be had."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WARM_WORKERS"]

MUTANTS_OF_WARM_WORKERS = (
    Mutant(
        "a folder or an archive is imported from by its relative path",
        "launcher/zygote/worker_bootstrap.py",
        "        sys.path[:0] = [_absolute(target)]\n",
        "        sys.path[:0] = [target]\n",
        ("tests/launcher/zygote/test_worker_bootstrap.py",),
    ),
    Mutant(
        "the place that was kept for the script's folder stays in front of an archive's modules",
        "launcher/zygote/worker_bootstrap.py",
        "            del sys.path[1]\n",
        "            pass\n",
        ("tests/launcher/zygote/test_worker_bootstrap.py",),
    ),
    Mutant(
        "what was imported ahead wins over what lies in the archive",
        "launcher/zygote/module_survey.py",
        '                return [name.partition("/")[0] for name in archive.namelist()]\n',
        "                return []\n",
        ("tests/launcher/zygote/test_worker_bootstrap.py",),
    ),
    Mutant(
        "a script's path is tidied up, other than by the interpreter",
        "launcher/zygote/worker_bootstrap.py",
        'return here if path in ("", ".") else f"{here}/{path}"',
        "return os.path.abspath(path)",
        ("tests/launcher/zygote/test_worker_bootstrap.py",),
    ),
    Mutant(
        "the monitor dies of a working folder that was deleted",
        "launcher/processes/working_folder.py",
        "    try:\n        return os.getcwd()\n    except OSError:\n        return None\n",
        "    return os.getcwd()\n",
        ("tests/launcher/processes/test_working_folder.py", "tests/launcher/incidents/test_stacks.py"),
    ),
    Mutant(
        "a mistake while stacks are taken costs all the other evidence",
        "launcher/monitor/rank_evidence.py",
        "    except Exception as error:  # noqa: BLE001 - whatever it is, it costs the stacks and no more\n",
        "    except OSError as error:\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "a mistake while evidence is collected costs the word of the verdict",
        "launcher/monitor/hang_incident.py",
        "    except Exception as error:  # noqa: BLE001 - whatever it is, the verdict stands and has to be told\n",
        "    except OSError as error:\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "who is condemned without evidence is not said to be",
        "launcher/monitor/hang_incident.py",
        "        is_condemned=True,\n        cause=verdict.cause,\n        section=verdict.section,\n",
        "        cause=verdict.cause,\n        section=verdict.section,\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "an incident that could not be written is taken for the one before it",
        "launcher/incidents/incident_writer.py",
        "            self._newest = None\n",
        "",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "a verdict that was withdrawn leaves its incident",
        "launcher/incidents/incident_writer.py",
        "            self._remove_newest()\n",
        "",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "an incident that cannot be put into words costs the thread that writes them",
        "launcher/incidents/incident_writer.py",
        "    except Exception as error:  # noqa: BLE001 - whatever it is, it costs the file alone\n",
        "    except UnicodeError as error:\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "an abort that may have come from outside is said to be the rank's own",
        "launcher/incidents/rules_of_exits.py",
        "    if first.exit_code == -signal.SIGABRT:",
        "    if False:",
        ("tests/launcher/incidents/test_attribution.py",),
    ),
)

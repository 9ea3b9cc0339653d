"""Mistakes around code of the user that straggler detection touches: wrapped models, hooks, threads, files."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WRAPPED_CODE"]

_CALLABLES = ("tests/straggler/measurement/test_callables.py",)
_MODELS = ("tests/straggler/measurement/test_wrapped_models.py",)
_LOG = ("tests/straggler/reporting/test_report_log.py",)
_PAST = ("tests/straggler/reporting/test_kept_past.py",)

MUTANTS_OF_WRAPPED_CODE = (
    Mutant(
        "a copy of an object calls what is wrapped with the original's weights",
        "straggler/measurement/timed.py",
        "        return copy.deepcopy(self.__wrapped__, memo)\n",
        "        return self\n",
        _MODELS,
    ),
    Mutant(
        "the section of a wrapped model is traced by torch.compile",
        "straggler/measurement/timed.py",
        "        if is_compiling():\n            return function(self, *args, **kwargs)\n",
        "",
        _MODELS,
    ),
    Mutant(
        "what others have put over a wrapped method is taken away",
        "straggler/measurement/callables.py",
        "    if not change.is_there:\n",
        "    if False:\n",
        _CALLABLES,
    ),
    Mutant(
        "the callables before one that cannot be wrapped stay wrapped",
        "straggler/measurement/callables.py",
        "                self._undo(*before)\n",
        "",
        _CALLABLES,
    ),
    Mutant(
        "a report is glued to a line that was cut off",
        "straggler/reporting/background_lines.py",
        'else b"\\n"\n',
        'else b""\n',
        _LOG,
    ),
    Mutant(
        "reports are added to a file that is no log of them",
        "straggler/reporting/own_files.py",
        "            return False\n        is_strange",
        "            return True\n        is_strange",
        _LOG,
    ),
    Mutant(
        "a pipe or device in the place of the past is replaced",
        "straggler/reporting/own_files.py",
        "    if not stat.S_ISREG(mode):\n",
        "    if False:\n",
        _PAST,
    ),
    Mutant(
        "a link in the place of the past is replaced",
        "straggler/reporting/kept_past.py",
        "            target = self.path.resolve()\n",
        "            target = self.path\n",
        _PAST,
    ),
    Mutant(
        "an entry that another thread has left stays open",
        "straggler/measurement/section.py",
        "                by_thread.pop(opened[0], None)\n",
        "                pass\n",
        ("tests/straggler/measurement/test_section.py",),
    ),
    Mutant(
        "what a decision hook raises costs the report",
        "straggler/reporting/decision_hook.py",
        "        except Exception as error:",
        "        except ImportError as error:",
        ("tests/straggler/reporting/test_decision_hook.py",),
    ),
)

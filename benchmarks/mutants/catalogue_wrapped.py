"""Mistakes around code of the user that straggler detection touches: wrapped models, hooks, threads, files."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WRAPPED_CODE"]

_CALLABLES = ("tests/straggler/measurement/test_callables.py",)
_STEPS = ("tests/straggler/measurement/test_timed_steps.py",)
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
        "something else stands in the place of a class that is named",
        "straggler/measurement/callables.py",
        "    if not issubclass(type(made), type):\n",
        "    if True:\n",
        _CALLABLES,
    ),
    Mutant(
        "a class without an __init__ in Python gets one that is timed",
        "straggler/measurement/callables.py",
        "    if not isinstance(init, FunctionType):\n",
        "    if False:\n",
        _CALLABLES,
    ),
    Mutant(
        "the objects of subclasses are timed with those of a class",
        "straggler/measurement/timed.py",
        " or type(self) is not made:\n",
        ":\n",
        _CALLABLES,
    ),
    Mutant(
        "a function that keeps its results takes two more frames while it is wrapped",
        "straggler/measurement/timed.py",
        "    if isinstance(raw, (FunctionType, *_TAKE_THE_OBJECT)):\n",
        "    if isinstance(raw, FunctionType):\n",
        _CALLABLES,
    ),
    Mutant(
        "a wrapped coroutine method is a plain one",
        "straggler/measurement/timed.py",
        "    steps = timed_steps(function, finds, None, is_compiling)\n",
        "    steps = None\n",
        _STEPS,
    ),
    Mutant(
        "a wrapped coroutine function of a class or module is a plain one",
        "straggler/measurement/timed.py",
        "    steps = timed_steps(function, finds, key, is_compiling)\n",
        "    steps = None\n",
        _STEPS,
    ),
    Mutant(
        "of a wrapped coroutine function that an object holds only the call is timed",
        "straggler/measurement/timed.py",
        "    steps = timed_steps(original, finds, id(owner), _is_compiling())\n",
        "    steps = None\n",
        _STEPS,
    ),
    Mutant(
        "the last step of a generator is taken for one that has failed",
        "straggler/measurement/timed_steps.py",
        "                except StopIteration as ended:",
        "                except ZeroDivisionError as ended:",
        _STEPS,
    ),
    Mutant(
        "what is thrown into a wrapped generator is sent to it",
        "straggler/measurement/timed_steps.py",
        "                step, value = inner.throw, error\n",
        "                step, value = inner.send, error\n",
        _STEPS,
    ),
    Mutant(
        "what a wrapped asynchronous generator gets thrown is sent to it",
        "straggler/measurement/timed_steps.py",
        "                step = inner.athrow(error)\n",
        "                step = inner.asend(error)\n",
        _STEPS,
    ),
    Mutant(
        "an event loop ends a wrapped asynchronous generator twice",
        "straggler/measurement/timed_steps.py",
        "    sys.set_asyncgen_hooks(None, None)\n",
        "",
        _STEPS,
    ),
    Mutant(
        "the steps of all objects of a class are timed with those of one",
        "straggler/measurement/timed_steps.py",
        "            find = finds.get(wanted)\n",
        "            find = next(iter(finds.values()), None)\n",
        _STEPS,
    ),
    Mutant(
        "an exception that was thrown into a wrapped generator holds itself",
        "straggler/measurement/timed_steps.py",
        "                    value = step = inner = args = ()",
        "                    pass",
        _STEPS,
    ),
    Mutant(
        "a node's name may be a number",
        "straggler/settings.py",
        "    if not isinstance(given, str):\n        raise ConfigError(f'DetectorSettings.node",
        "    if False:\n        raise ConfigError(f'DetectorSettings.node",
        ("tests/straggler/test_wrong_arguments.py",),
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
        "    except BaseException as error:",
        "    except ImportError as error:",
        ("tests/straggler/reporting/test_decision_hook.py",),
    ),
    Mutant(
        "a hook that still decides is asked again",
        "straggler/reporting/decision_hook.py",
        "        if self._is_busy:\n",
        "        if False:\n",
        ("tests/straggler/reporting/test_decision_hook.py",),
    ),
    Mutant(
        "the final word on what training has done opens it once more",
        "straggler/exchange/agreement.py",
        " and self._open.number == proposal.number and self._open.is_final is None:",
        " or True:",
        ("tests/straggler/exchange/test_agreement.py",),
    ),
    Mutant(
        "a report is not hurried for which training waits to agree",
        "straggler/scheduled_reports.py",
        "        return self._thread.is_hurried() or self._agreement.has_waited(_LONGEST_WAIT)\n",
        "        return self._thread.is_hurried()\n",
        ("tests/straggler/test_scheduled_reports.py",),
    ),
    Mutant(
        "the counter of a rank that is late stays in the store",
        "straggler/exchange/store.py",
        "if self._store.add(counter, 1) == 1 and self._is_too_late(sequence):",
        "if self._store.add(counter, 1) == 0:",
        ("tests/straggler/exchange/test_exchange.py",),
    ),
    Mutant(
        "a wrapped cached method has no cache_info",
        "straggler/measurement/timed.py",
        "        if hasattr(function, name):  # methods",
        "        if False:  # methods",
        _CALLABLES,
    ),
)

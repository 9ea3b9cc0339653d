"""Mistakes in how evidence of a verdict is taken: its bounds, and what another verdict or a stranger has left."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_EVIDENCE"]

_STACKS = ("tests/launcher/incidents/test_stacks.py",)
_TERMINATION = ("tests/launcher/monitor/test_termination.py",)
_OTHERS = ("tests/launcher/monitor/test_other_nodes.py",)
_ASKED = "tests/launcher/incidents/test_stacks.py"
_NUMBERS = "tests/resilience_core/monitoring/test_group_numbers.py"

MUTANTS_OF_EVIDENCE = (
    Mutant(
        "what py-spy has started lives on",
        "launcher/incidents/py_spy_runs.py",
        "os.killpg(run.pid, signal.SIGKILL)",
        "os.kill(run.pid, signal.SIGKILL)",
        _STACKS,
    ),
    Mutant(
        "py-spy may fill the memory",
        "launcher/incidents/py_spy_runs.py",
        "fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK",
        "fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK",
        _STACKS,
    ),
    Mutant(
        "the question to a rank is waited for on top of py-spy",
        "launcher/incidents/stacks.py",
        "end - may_ask * _PART_FROM_INSIDE * timeout_seconds",
        "end",
        _STACKS,
    ),
    Mutant(
        "JSON that is nested without end costs the stacks of all",
        "launcher/incidents/stacks.py",
        "AttributeError, RecursionError, ",
        "AttributeError, ",
        _STACKS,
    ),
    Mutant(
        "source is read for as long again as stacks may take",
        "launcher/monitor/hang_incident.py",
        "lines_that_tell(ours), _seconds_until(end), began",
        "lines_that_tell(ours), settings.config.stack_capture_timeout, began",
        _TERMINATION,
    ),
    Mutant(
        "stacks leave no time for the source of their lines",
        "launcher/monitor/hang_incident.py",
        "left = _PART_FOR_STACKS * _seconds_until(end)",
        "left = _seconds_until(end)",
        _TERMINATION,
    ),
    Mutant(
        "every rank is lively",
        "launcher/monitor/rank_evidence.py",
        "is_lively=0 <= time.monotonic_ns() - sign_ns < _LIVELY_NS",
        "is_lively=True",
        _TERMINATION,
    ),
    Mutant(
        "no rank is lively",
        "launcher/monitor/rank_evidence.py",
        "is_lively=0 <= time.monotonic_ns() - sign_ns < _LIVELY_NS",
        "is_lively=False",
        _TERMINATION,
    ),
    Mutant(
        "a look takes as long as the node that has asked waits for it",
        "launcher/monitor/other_nodes.py",
        "_PART * settings.config.stack_capture_timeout",
        "settings.config.stack_capture_timeout",
        _OTHERS,
    ),
    Mutant(
        "the word for a verdict that was withdrawn counts for the next one",
        "launcher/monitor/other_nodes.py",
        "        channel.forget_word(generation)\n",
        "",
        _OTHERS,
    ),
    Mutant(
        "the word for another generation is dropped, too",
        "launcher/monitor/parent_channel.py",
        "isinstance(each.order, Proceed) and each.order.generation == generation\n        ]",
        "isinstance(each.order, Proceed)\n        ]",
        _OTHERS,
    ),
    Mutant(
        "descriptors that come with an order that cannot be read stay open",
        "launcher/monitor/parent_channel.py",
        "                for descriptor in descriptors:\n                    os.close(descriptor)\n",
        "",
        _OTHERS,
    ),
    Mutant(
        "where no thread can be started the pipe and the file stay open",
        "resilience_core/monitoring/group_numbers.py",
        "            thread.close()\n",
        "            pass\n",
        (f"{_NUMBERS}::test_where_it_cannot_be_had_the_rank_goes_on_without",),
    ),
    Mutant(
        "a training that shuts down waits for room in a pipe full of questions",
        "resilience_core/monitoring/group_numbers.py",
        "os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC",
        "os.O_RDWR | os.O_CLOEXEC",
        (f"{_NUMBERS}::test_a_thread_that_is_busy_is_told_to_stop_without_waiting",),
    ),
    Mutant(
        "a second stop writes into whatever file has the pipe's number by then",
        "resilience_core/monitoring/group_numbers.py",
        "if self._pid != os.getpid() or self._is_told_to_stop:",
        "if self._pid != os.getpid():",
        (f"{_NUMBERS}::test_a_thread_that_is_busy_is_told_to_stop_without_waiting",),
    ),
    Mutant(
        "the signal for a stack reads those of threads that run",
        "resilience_core/monitoring/process_hooks.py",
        "file=file, all_threads=False, chain=False",
        "file=file, all_threads=True, chain=False",
        (f"{_ASKED}::test_a_process_with_busy_threads_does_not_die_of_the_question",),
    ),
    Mutant(
        "any thread may take the signal for the stack of the main thread",
        "launcher/incidents/stacks_from_inside.py",
        "if not send_to_main_thread(each.pidfd, each.pid, number)}",
        "if not __import__('signal').pidfd_send_signal(each.pidfd, number) is None}",
        (f"{_ASKED}::test_a_process_with_busy_threads_does_not_die_of_the_question",),
    ),
    Mutant(
        "one that answers by its thread is asked by the signal, too",
        "launcher/incidents/stacks_from_inside.py",
        "if put_question(each.cell + QUESTIONS, STACKS_QUESTION)}",
        "if False}",
        (f"{_ASKED}::test_who_answers_by_a_thread_is_not_asked_by_a_signal",),
    ),
    Mutant(
        "a rank whose thread cannot run is not asked by the signal",
        "launcher/incidents/stacks_from_inside.py",
        "silent = [each for each in waiting.values() if not each.refusal and",
        "silent = [each for each in waiting.values() if False and",
        (f"{_ASKED}::test_one_whose_thread_cannot_run_is_asked_by_the_signal",),
    ),
    Mutant(
        "half an answer of a thread is taken for all of it",
        "launcher/incidents/stacks_from_inside.py",
        "    if not is_complete:\n        return ()\n    head",
        "    head",
        (f"{_ASKED}::test_half_an_answer_is_none",),
    ),
    Mutant(
        "of what a thread tells, no other thread is the main one",
        "launcher/incidents/stacks_from_inside.py",
        "name = MAIN if main is not None and _is_of(",
        "name = MAIN if main is None and _is_of(",
        (f"{_ASKED}::test_a_process_with_busy_threads_does_not_die_of_the_question",),
    ),
    Mutant(
        "a question for stacks is taken for one for numbers",
        "resilience_core/monitoring/group_numbers.py",
        "name for name in names if name != STACKS_QUESTION",
        "name for name in names",
        (f"{_NUMBERS}::test_stacks_and_numbers_may_be_asked_for_at_once",),
    ),
    Mutant(
        "of more than a hundred threads the main one is not told",
        "resilience_core/monitoring/group_numbers.py",
        "frame = sys._current_frames().get(main or 0)",
        "frame = None",
        (f"{_ASKED}::test_a_process_with_busy_threads_does_not_die_of_the_question",),
    ),
    Mutant(
        "where a rank was that a signal has woken is told by what it did later",
        "launcher/incidents/stacks_from_inside.py",
        "return _signal_answer(_new_text(*self.by_signal)) or _thread_answer(_new_text(*self.by_thread))",
        "return _thread_answer(_new_text(*self.by_thread)) or _signal_answer(_new_text(*self.by_signal))",
        (f"{_ASKED}::test_the_answer_to_a_signal_goes_before_a_later_one",),
    ),
    Mutant(
        "a signal asks ranks that are not overdue for their stacks",
        "launcher/monitor/hang_incident.py",
        "interruptible = alive if settings.owns_ranks and not verdicts else verdicts",
        "interruptible = alive if settings.owns_ranks else verdicts",
        _TERMINATION,
    ),
    Mutant(
        "one that may not be interrupted is sent the signal",
        "launcher/incidents/stacks_from_inside.py",
        "            if key not in interruptible:\n                refusal = _NOT_OVERDUE\n",
        "",
        (f"{_ASKED}::test_who_may_not_be_interrupted_is_asked_by_its_thread_alone",),
    ),
)

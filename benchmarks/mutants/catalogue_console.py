"""Deliberate mistakes in what people and programs read on standard error, and in the output of ranks."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_CONSOLE"]

_LINES = ("tests/launcher/records/test_console_lines.py",)
_CONSOLE = ("tests/launcher/records/test_console.py",)
_TEE = ("tests/launcher/workers/test_tee.py",)
_SHARED = ("tests/launcher/records/test_shared_output.py",)
_RANK = ("tests/resilience_core/monitoring/test_rank_logging.py",)

MUTANTS_OF_CONSOLE = (
    Mutant(
        "what cannot be said ends whoever says it",
        "launcher/records/console.py",
        "except Exception:  # noqa: BLE001 - whatever was handed over",
        "except OSError:  #",
        _CONSOLE,
    ),
    Mutant(
        "a stream that raises is not counted as lost",
        "launcher/records/console.py",
        "        except Exception:  # noqa: BLE001 - of a stream that somebody has put there, anything\n",
        "        except OSError:\n",
        _CONSOLE,
    ),
    Mutant(
        "of two facts of which a story has one the first is lost",
        "launcher/records/console_lines.py",
        'f"{told[fact[0]]}\\n{fact[1]}" if fact[0] in told else fact[1]',
        "fact[1]",
        _LINES,
    ),
    Mutant(
        "a message about thousands of ranks has nothing but their numbers",
        "launcher/records/console_lines.py",
        "**ranks, **cut",
        "**cut",
        _LINES,
    ),
    Mutant(
        "of an option that is given twice the first counts",
        "launcher/command_line/log_settings.py",
        "                found = value\n",
        "                found = found or value\n",
        ("tests/launcher/command_line/test_log_settings.py",),
    ),
    Mutant(
        "an option of the script is taken for one of the launcher",
        "launcher/command_line/log_settings.py",
        "    return command[begin:end]\n",
        "    return command[begin:]\n",
        ("tests/launcher/command_line/test_log_settings.py",),
    ),
    Mutant(
        "files and pipes get colours",
        "launcher/records/console_lines.py",
        "    return os.isatty(descriptor)\n",
        "    return True\n",
        _LINES,
    ),
    Mutant(
        "NO_COLOR is not heeded",
        "launcher/records/console_lines.py",
        'if os.environ.get("NO_COLOR") or ',
        "if ",
        _LINES,
    ),
    Mutant(
        "a line leaves the terminal coloured",
        "launcher/records/console_lines.py",
        'line.raw[:-1] + RESET + b"\\n"',
        'line.raw[:-1] + b"\\n"',
        _LINES,
    ),
    Mutant(
        "the line of the culprit is not bold",
        "launcher/records/console_lines.py",
        "        return (_BOLD if is_detail else _BOLD_RED) if names_culprit else",
        "        return (_BOLD if is_detail else _BOLD_RED) if not names_culprit else",
        _LINES,
    ),
    Mutant(
        "an object is longer than what the kernel writes in one piece",
        "launcher/records/console_lines.py",
        "    while len(raw) > LONGEST_OBJECT and longest > 16:\n",
        "    while False:\n",
        _LINES,
    ),
    Mutant(
        "a fact of a story may have the name of a field of ours",
        "launcher/records/console_lines.py",
        "(fact[0] in taken or fact[0] in _OURS)",
        "fact[0] in taken",
        _LINES,
    ),
    Mutant(
        "lines of a job on several nodes do not name theirs",
        "launcher/records/console_lines.py",
        " if self.names_node else ",
        " if False else ",
        _LINES,
    ),
    Mutant(
        "a long message is written to a pipe without regard to who else writes there",
        "launcher/records/standard_error.py",
        "    return len(raw) if len(raw) <= longest else",
        "    return len(raw) if raw else",
        _LINES,
    ),
    Mutant(
        "torch's own handlers write beside the console",
        "launcher/records/log_records.py",
        "        _take_over_torchs()\n",
        "",
        _CONSOLE,
    ),
    Mutant(
        "log_level does not count for what others log",
        "launcher/records/log_records.py",
        "level=record.levelno,",
        "level=max(record.levelno, console.threshold()),",
        _CONSOLE,
    ),
    Mutant(
        "what a rank writes at its very end is not copied by --tee",
        "launcher/workers/tee.py",
        "                if was_finished:\n",
        "                if finished.is_set():\n",
        _TEE,
    ),
    Mutant(
        "a carriage return ends no piece of --tee",
        "launcher/workers/tee.py",
        'piece.endswith((b"\\r", b"\\n")), piece.endswith(b"\\r")',
        'piece.endswith((b"\\r", b"\\n")), False',
        _TEE,
    ),
    Mutant(
        "a rank's message does not say whose it is",
        "resilience_core/monitoring/rank_logging.py",
        ' if rank.isdigit() else ""\n',
        ' if rank == "" else ""\n',
        _RANK,
    ),
    Mutant(
        "a rank's messages stay text where objects are asked for",
        "resilience_core/monitoring/rank_logging.py",
        "    _handler.log_format = log_format\n",
        "",
        _RANK,
    ),
    Mutant(
        "ft_autoresume does not read the launcher's file for its log",
        "launcher/command_line/log_settings.py",
        "            state = State(config.log_level, config.log_format)\n",
        "            pass\n",
        ("tests/launcher/test_autoresume.py",),
    ),
    Mutant(
        "a job that has failed says nothing at log level CRITICAL",
        "launcher/agent/incident_log.py",
        "            level=CRITICAL,\n",
        "            level=ERROR,\n",
        ("tests/e2e/test_log_settings.py",),
    ),
    Mutant(
        "a monitor does not follow the log settings",
        "launcher/monitor/monitor.py",
        "console.State(settings.config.log_level, settings.config.log_format, settings.names_node)",
        "console.State()",
        ("tests/e2e/test_log_settings.py",),
    ),
    Mutant(
        "a message stands behind what a rank has left without an end",
        "launcher/records/shared_output.py",
        '                self._state[0] = not raw.endswith(b"\\n")\n',
        "                self._state[0] = 0\n",
        _SHARED,
    ),
    Mutant(
        "a progress bar is taken for a line that has ended",
        "launcher/records/shared_output.py",
        'not raw.endswith(b"\\n")',
        'not raw.endswith((b"\\r", b"\\n"))',
        _SHARED,
    ),
    Mutant(
        "a line is ended before every message once one was",
        "launcher/records/shared_output.py",
        "                self._state[0] = 0\n",
        "",
        _SHARED,
    ),
    Mutant(
        "copies without end keep messages from being written",
        "launcher/records/shared_output.py",
        "not self._is_taken and not self._messages_waiting",
        "not self._is_taken",
        _SHARED,
    ),
    Mutant(
        "other processes write into a copy that is being written",
        "launcher/records/shared_output.py",
        "        while not (is_held := self._lock()) and time.monotonic() < end:\n",
        "        while not (is_held := True) and time.monotonic() < end:\n",
        _SHARED,
    ),
    Mutant(
        "a message waits for a copy for ever where there is no thread",
        "launcher/records/shared_output.py",
        "self._changed.wait_for(lambda: not self._is_taken, timeout_seconds)",
        "self._changed.wait_for(lambda: not self._is_taken, timeout_seconds and 3600)",
        _SHARED,
    ),
    Mutant(
        "the monitor does not know where copies have come",
        "launcher/monitor/monitor.py",
        "console.start(settings.console)",
        "console.start()",
        ("tests/e2e/test_rank_output.py::test_a_message_of_the_monitor_begins_on_a_line_of_its_own",),
    ),
    Mutant(
        "what a rank has left without an end is not ended when the launcher ends",
        "launcher/cli.py",
        "    end_line()\n",
        "",
        ("tests/e2e/test_rank_output.py",),
    ),
    Mutant(
        "--tee copies text and not bytes",
        "launcher/workers/worker_processes.py",
        "        keep_bytes(self)\n",
        "",
        ("tests/e2e/test_rank_output.py",),
    ),
)

"""Mistakes in whom a job tells of its events, how a call is bounded, and in spans."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_NOTICES"]

_CALLER = ("tests/launcher/notices/test_caller.py",)
_POST = ("tests/launcher/notices/test_post.py",)
_NOTICE = ("tests/launcher/notices/test_notice.py",)
_NODE = ("tests/launcher/agent/test_notices.py",)
_TIMES = ("tests/launcher/records/test_restart_times.py",)
_SPANS = ("tests/launcher/test_spans.py",)
_RANK = ("tests/resilience_core/plugins/test_training_spans.py",)
_JOB = ("tests/e2e/test_on_event.py",)


def _mutant(name: str, path: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, f"{path}.py", old, new, tests)


MUTANTS_OF_NOTICES = (
    # ---- one call ----
    _mutant(
        "what a command has started outlives it",
        "launcher/notices/call",
        "    end_processes(_live_children, _KILL_SECONDS)\n",
        "    for pid in _live_children():\n        os.kill(pid, signal.SIGKILL)\n",
        _CALLER,
    ),
    _mutant(
        "daemons of a command are nobody's",
        "launcher/notices/caller",
        "    prctl.become_subreaper()\n",
        "",
        _CALLER,
    ),
    _mutant(
        "commands inherit that signals are ignored",
        "launcher/notices/caller",
        "signal.signal(number, lambda *_: None)",
        "signal.signal(number, signal.SIG_IGN)",
        _CALLER,
    ),
    _mutant(
        "a signal to the job ends the process that tells events",
        "launcher/notices/caller",
        "        signal.signal(number, lambda *_: None)\n",
        "        pass\n",
        _CALLER,
    ),
    _mutant(
        "a call has no time limit",
        "launcher/notices/caller",
        "        if has_ended or time.monotonic() >= call.deadline:\n",
        "        if has_ended:\n",
        _POST,
    ),
    _mutant(
        "a problem is said each time",
        "launcher/notices/caller",
        "        if kind in self._said:\n            return\n",
        "",
        _CALLER,
    ),
    _mutant(
        "the newest events are dropped, not the oldest",
        "launcher/notices/caller",
        "            self._waiting.popleft()\n",
        "            self._waiting.pop()\n",
        _CALLER,
    ),
    _mutant(
        "the end of the job does not wait for what is to be told",
        "launcher/notices/caller",
        "            self._end_at = time.monotonic() + LAST_SECONDS\n",
        "            self._end_at = time.monotonic()\n",
        _CALLER,
    ),
    _mutant(
        "the launcher waits for a process that is stopped",
        "launcher/notices/handle",
        "self._channel.send(raw, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)",
        "self._channel.send(raw, socket.MSG_NOSIGNAL)",
        _CALLER,
    ),
    _mutant(
        "redirects are followed",
        "launcher/notices/post",
        "        urllib.request.HTTPErrorProcessor(),\n",
        "        urllib.request.HTTPErrorProcessor(),\n        urllib.request.HTTPRedirectHandler(),\n",
        _POST,
    ),
    _mutant(
        "messages show the path of a webhook",
        "launcher/notices/target",
        "        return shown(self.url) if self.url",
        "        return self.url if self.url",
        _POST,
    ),
    _mutant(
        "a redirect is told with its path",
        "launcher/notices/post",
        "    return redacted_url(urllib.parse.urlunsplit(parts))\n",
        "    return urllib.parse.urlunsplit(parts)\n",
        _POST,
    ),
    _mutant(
        "a refusal of the library is told with the path that it repeats",
        "launcher/notices/post",
        '            text = text.replace(secret, "***")\n',
        "            pass\n",
        _POST,
    ),
    _mutant(
        "a document of a thousand culprits names them all",
        "launcher/notices/notice",
        "self.culprits[:_MOST_CULPRITS]]",
        "self.culprits]",
        _NOTICE,
    ),
    # ---- which node tells it ----
    _mutant(
        "every node tells the end of a job that has failed",
        "launcher/agent/notices",
        "            return self._told == generation\n",
        "            return True\n",
        _NODE,
    ),
    _mutant(
        "every node tells each restart",
        "launcher/agent/notices",
        '        elif event == "restarted" and self._is_first_node:\n',
        '        elif event == "restarted":\n',
        _NODE,
    ),
    _mutant(
        "a node that leaves tells that the job has failed",
        "launcher/agent/notices",
        'event = "node_left" if facts["has_left"] else ',
        "event = ",
        _NODE,
    ),
    _mutant(
        "who has not gathered a failure tells it, too",
        "launcher/agent/incident_log",
        "about(incident))\n            self._resources.notices.tell_own(incident.generation)\n",
        "about(incident))\n        self._resources.notices.tell_own(incident.generation)\n",
        _JOB,
    ),
    _mutant(
        "the process that tells events is ended as an orphan of a rank",
        "launcher/agent/resources",
        "*self.notices.pids, ",
        "",
        ("tests/launcher/agent/test_generation.py",),
    ),
    # ---- spans ----
    _mutant(
        "detection begins when it is over",
        "launcher/records/restart_times",
        "        min([*seen_ns, asked_ns, *deadlines]),\n",
        "        min([*seen_ns, asked_ns]),\n",
        _TIMES,
    ),
    _mutant(
        "runs of one name are one",
        "launcher/records/restart_times",
        "        if not groups or file[0].at_ns > until_ns:\n",
        "        if not groups:\n",
        _TIMES,
    ),
    _mutant(
        "a part may end before it began",
        "launcher/records/restart_times",
        "        times[index] = max(times[index], times[index - 1])\n",
        "        pass\n",
        _TIMES,
    ),
    _mutant(
        "what is exported twice is two traces",
        "launcher/run_spans",
        '        return _number(f"{self.trace}\\n{self.span}", 8)\n',
        '        return _number(f"{id(self)}{self.span}", 8)\n',
        _SPANS,
    ),
    _mutant(
        "the launcher imports OpenTelemetry",
        "launcher/agent/notices",
        "import os\n",
        "import os\nimport opentelemetry.trace\n",
        _SPANS,
    ),
    _mutant(
        "every step is a span",
        "resilience_core/plugins/training_spans",
        "        if self._every and iteration % self._every == 0:\n",
        "        if True:\n",
        _RANK,
    ),
    _mutant(
        "the root of a rank's trace is open until the end",
        "resilience_core/plugins/training_spans",
        "        training.end()\n",
        "        self._training = training\n",
        _RANK,
    ),
    # ---- what does not fit, or does not arrive ----
    _mutant(
        "a document grows sixfold on its way",
        "launcher/notices/notice",
        "ensure_ascii=False, ",
        "",
        _NOTICE,
    ),
    _mutant(
        "a document that is cut off ends the process",
        "launcher/notices/caller",
        "    except ValueError:\n",
        "    except LookupError:\n",
        _CALLER,
    ),
    _mutant(
        "what a killed launcher has sent is lost with what it has not read",
        "launcher/notices/caller",
        "            except ConnectionResetError:",
        "            except FileNotFoundError:",
        _CALLER,
    ),
    _mutant(
        "a verdict that was taken back is the cause of a later restart",
        "launcher/records/verdicts",
        'if event["t_ns"] >= seen_ns',
        'if event["t_ns"] < seen_ns',
        _TIMES,
    ),
    _mutant(
        "an export that has failed is a success",
        "launcher/spans",
        "    if ended.lost:\n",
        "    if False:\n",
        _SPANS,
    ),
    _mutant(
        "the service of the environment is called by our name",
        "resilience_core/span_export",
        "    resource = Resource.create()\n",
        "    resource = Resource.create({SERVICE_NAME: _NO_NAME})\n",
        ("tests/resilience_core/test_span_export.py",),
    ),
    _mutant(
        "a server's own words are told",
        "launcher/notices/post",
        "{_status(error.code)}",
        "{error.code} {error.reason}",
        _POST,
    ),
    _mutant(
        "a URL without its slashes is taken for a command",
        "resilience_core/config/notice_values",
        "    if (mistyped := _MISTYPED_URL.match(words[0])) is not None:\n",
        "    if (mistyped := None) is not None:\n",
        ("tests/resilience_core/config/test_notice_values.py",),
    ),
)

"""Deliberate mistakes: how nodes that have verdicts of their own answer each other, and how long ranks are spared."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_LOOKS"]

_OTHERS = ("tests/launcher/monitor/test_other_nodes.py",)
_GATHERING = ("tests/launcher/nodes/test_gathering.py",)
_STORE = ("tests/launcher/agent/test_store_exchange.py",)
_STORIES = ("tests/launcher/agent/test_job_stories.py",)
_TERMINATION = ("tests/launcher/monitor/test_termination.py",)

_COMEBACKS = ("tests/launcher/monitor/test_comebacks.py",)
_MONITOR = ("tests/launcher/monitor/test_monitor.py",)

MUTANTS_OF_LOOKS = (
    Mutant(
        "who was late and was never found to be counts as in time",
        "launcher/monitor/monitor.py",
        "            self._comebacks.look(self._judged())\n",
        "",
        _MONITOR,
    ),
    Mutant(
        "who was late and is back by the look of another node counts as in time",
        "launcher/monitor/monitor.py",
        "        self._comebacks.look(ranks, read=True)\n",
        "",
        _MONITOR,
    ),
    Mutant(
        "a monitor that takes over has seen all that was",
        "launcher/monitor/comebacks.py",
        "            elif view.last_sign_ns:\n",
        "            elif False:\n",
        _COMEBACKS,
    ),
    Mutant(
        "what ranks have said is kept for ever",
        "launcher/monitor/comebacks.py",
        " if rank.order.generation >= generation}",
        "}",
        _COMEBACKS,
    ),
    Mutant(
        "a look at no rank forgets what the others have said",
        "launcher/monitor/comebacks.py",
        "        self._before = dict(before)\n",
        "        self._before = {}\n",
        _COMEBACKS,
    ),
    Mutant(
        "who was in time has come back",
        "launcher/monitor/comebacks.py",
        "if each.at_ns <= now.last_sign_ns)",
        "if True)",
        _COMEBACKS,
    ),
    Mutant(
        "who is still in its section has come back",
        "launcher/monitor/comebacks.py",
        " if word(each) not in running]",
        "]",
        _COMEBACKS,
    ),
    Mutant(
        "who came back did so when it gave its last sign",
        "launcher/monitor/comebacks.py",
        "Comeback(rank.order.rank, each.at_ns, each.at_ns - each.since_ns) for",
        "Comeback(rank.order.rank, view.last_sign_ns, each.at_ns - each.since_ns) for",
        _COMEBACKS,
    ),
    Mutant(
        "a successor is the rank that has come back",
        "launcher/monitor/comebacks.py",
        "    if (now.pid, now.start_time) != (before.pid, before.start_time):\n        return []\n    running",
        "    running",
        _COMEBACKS,
    ),
    Mutant(
        "ranks of an earlier generation have come back in this one",
        "launcher/monitor/comebacks.py",
        "view is None or rank.order.generation != generation:",
        "view is None:",
        _COMEBACKS,
    ),
    Mutant(
        "who is kept waiting answers no look, and two wait for each other",
        "launcher/monitor/other_nodes.py",
        "if not look.is_brief:",
        "if False:",
        _OTHERS,
    ),
    Mutant(
        "who is kept waiting does not look once more afterwards",
        "launcher/monitor/other_nodes.py",
        "        return look.is_brief and may_answer\n",
        "        return not look.is_brief or may_answer\n",
        _OTHERS,
    ),
    Mutant(
        "a look is answered at each turn of the wait",
        "launcher/monitor/parent_channel.py",
        "                    looks.append(asked)\n",
        "",
        _OTHERS,
    ),
    Mutant(
        "a look at another generation is answered",
        "launcher/monitor/parent_channel.py",
        "isinstance(asked.order, Look) and asked.order.generation == generation:",
        "isinstance(asked.order, Look):",
        _OTHERS,
    ),
    Mutant(
        "who is known to have come back is forgotten where no word comes",
        "launcher/monitor/parent_channel.py",
        "        return came_back\n",
        "        return ()\n",
        _OTHERS,
    ),
    Mutant(
        "a full look delays a brief one",
        "launcher/monitor/parent_channel.py",
        "            self._arrived.appendleft(brief)\n",
        "            self._arrived.append(brief)\n",
        _OTHERS,
    ),
    Mutant(
        "a look that is answered makes a verdict one with somebody to blame",
        "launcher/agent/job_stories.py",
        "came_back, only_waits=self._only_waits, is_brief=is_brief)",
        "came_back, is_brief=is_brief)",
        _STORIES,
    ),
    Mutant(
        "that a verdict was on ranks that wait is never forgotten",
        "launcher/agent/job_stories.py",
        "            self._only_waits = only_waits\n",
        "            self._only_waits |= only_waits\n",
        _STORIES,
    ),
    Mutant(
        "the monitor is not told who is known to have come back",
        "launcher/agent/job_stories.py",
        "is_brief=True, came_back=known)",
        "is_brief=True)",
        _STORIES,
    ),
    Mutant(
        "the leader asks briefly and does not say who is known to have come back",
        "launcher/nodes/looks.py",
        "is_brief=True, came_back=came_back)",
        "is_brief=True)",
        _GATHERING,
    ),
    Mutant(
        "a node does not hear who is known to have come back",
        "launcher/nodes/gathering.py",
        "Heard(message.generation, word, came_back=message.came_back)",
        "Heard(message.generation, word)",
        _GATHERING,
    ),
    Mutant(
        "with each further one that only waits all are waited for anew",
        "launcher/nodes/looks.py",
        "self._confirming |= {name: {} for name in waiting}",
        "self._confirming = {name: {} for name in (*self._confirming, *waiting)}",
        _GATHERING,
    ),
    Mutant(
        "an answer counts for the first one that asked alone",
        "launcher/nodes/looks.py",
        "for said in self._confirming.values():",
        "for said in list(self._confirming.values())[:1]:",
        _GATHERING,
    ),
    Mutant(
        "the answers for a verdict that was withdrawn let the next one proceed",
        "launcher/nodes/looks.py",
        "        self._confirming.pop(sender, None)  # its last verdict was withdrawn\n",
        "",
        _GATHERING,
    ),
    Mutant(
        "numbers that are none end the leader",
        "launcher/nodes/looks.py",
        " if isinstance(said, tuple) and all(type(v) is int for v in said)]",
        "]",
        _GATHERING,
    ),
    Mutant(
        "through a store, the answers for a verdict that was withdrawn let the next one proceed",
        "launcher/agent/store_exchange.py",
        "            watched.confirmations.drop()\n",
        "",
        _STORE,
    ),
    Mutant(
        "through a store, who came back before the second question is forgotten",
        "launcher/agent/store_exchange.py",
        "came_back = (*watched.came_back, *since)",
        "came_back = since",
        _STORE,
    ),
    Mutant(
        "a question is answered twice where the store fails in between",
        "launcher/agent/store_questions.py",
        "            self._told = number  # each",
        "            self._told = latest if number == latest else self._told  # each",
        _STORE,
    ),
    Mutant(
        "a key that was reserved and never set is waited for",
        "launcher/agent/store_questions.py",
        "    if not store.check([key]):\n        return []\n",
        "",
        _STORE,
    ),
    Mutant(
        "what another node has told is taken as it is",
        "launcher/agent/store_questions.py",
        "told if isinstance(told, list) and all(type(value) is int for value in told) else []",
        "told",
        _STORE,
    ),
    Mutant(
        "who waits for one that is late again and again is never found",
        "launcher/monitor/deadline_rules.py",
        "now_ns < each.at_ns + PATIENCE_NS for",
        "True or now_ns < each.at_ns + PATIENCE_NS for",
        _TERMINATION,
    ),
    Mutant(
        "nobody who waits is spared",
        "launcher/monitor/deadline_rules.py",
        "now_ns < each.at_ns + PATIENCE_NS for",
        "False and now_ns < each.at_ns + PATIENCE_NS for",
        _TERMINATION,
    ),
    Mutant(
        "one that has waited itself is said to have been waited for",
        "launcher/monitor/waiters.py",
        "sorted(returned_ranks, key=waited.__contains__)",
        "returned_ranks",
        _TERMINATION,
    ),
)

"""Mistakes in what a report makes of a log folder."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_REPORTS"]

_LEDGER = ("tests/launcher/reports/test_ledger.py",)
_STORY = ("tests/launcher/reports/test_story.py",)
_RECOMMEND = ("tests/launcher/reports/test_recommend.py",)
_GAPS = ("tests/launcher/reports/test_gaps.py",)
_COMMAND = ("tests/launcher/reports/test_command.py",)
_CUTS = "launcher/reports/ledger.py"
_LOST = "launcher/reports/lost_work.py"
_TOGETHER = "launcher/reports/story.py"

MUTANTS_OF_REPORTS = (
    Mutant(
        "a report takes a rank that closes its step when it is killed for one that gets on",
        "launcher/reports/rank_lives.py",
        "for sign in self.signs_ns if sign <= until_ns",
        "for sign in self.signs_ns",
        (*_RECOMMEND, *_LEDGER),
    ),
    Mutant(
        "a report counts a step that an exception has ended as done",
        _TOGETHER,
        "if done is not None and rank in self.errors and self.errors[rank] == done:",
        "if False:",
        _LEDGER,
    ),
    Mutant(
        "a report counts a step as done that one rank has done",
        _TOGETHER,
        "done=(min if under_way else max)(known) if",
        "done=max(known) if",
        _LEDGER,
    ),
    Mutant(
        "a report compares the clocks of two nodes",
        _TOGETHER,
        "    shortest = min(took, default=0)\n",
        "    shortest = max((m.seen_ns or 0 for m in members), default=0)\n",
        _LEDGER,
    ),
    Mutant(
        "a report takes the next run of a name for the same run where a clock is ahead",
        "launcher/reports/runs.py",
        "and max((generation.number for generation in other.generations), default=-1) >= first",
        "and False",
        _LEDGER,
    ),
    Mutant(
        "a report counts what a run repeats of the run before it as new",
        _LOST,
        "        later = [each for each in generations[number + 1 :] if each.run not in odd_runs]\n",
        "        later = [each for each in generations[number + 1 :] if each.run == generation.run]\n",
        _LEDGER,
    ),
    Mutant(
        "a report keeps what a failed run has done since its last save",
        _LOST,
        "        return Loss(Kept.SAVE, max(saves), is_final=True)\n",
        "        return Loss(Kept.ALL, is_final=True)\n",
        _LEDGER,
    ),
    Mutant(
        "a report loses everything where a save was noted",
        _LOST,
        "        if number is not None and number in saves:\n",
        "        if False:\n",
        _LEDGER,
    ),
    Mutant(
        "a report counts an iteration too many as repeated",
        _LOST,
        "max(0, min(own[1], last) - max(own[0], first) + 1)",
        "max(0, min(own[1], last) - max(own[0], first) + 2)",
        _LEDGER,
    ),
    Mutant(
        "a report counts saves that were lost as checkpointing",
        _CUTS,
        "saving_ns = life.checkpointing_ns(lost_ns) - ",
        "saving_ns = life.checkpointing_ns(sign_ns) - ",
        _LEDGER,
    ),
    Mutant(
        "a report forgets the back-off",
        _CUTS,
        "        waited_ns = max(0, min(pause[1], started_ns) - max(pause[0], other.stopped_ns))\n",
        "        waited_ns = 0\n",
        _LEDGER,
    ),
    Mutant(
        "a report calls a generation productive that never took a step",
        _CUTS,
        "    if life is not None and steps:  # the others take steps, and it came to none\n",
        "    if False:\n",
        _LEDGER,
    ),
    Mutant(
        "a report ends with the ranks, not with the launcher",
        _CUTS,
        '        yield None, "idle", last_ns - member.stopped_ns, False\n',
        "        pass\n",
        _LEDGER,
    ),
    Mutant(
        "a report takes a killed launcher for one that runs",
        "launcher/reports/launches.py",
        "        writes = launch.ended_ns is None and time.time() - launch.at(last) < due_seconds\n",
        "        writes = launch.ended_ns is None\n",
        _LEDGER,
    ),
    Mutant(
        "a report takes a verdict that was taken back for the end of a generation",
        "launcher/reports/node_generations.py",
        "if not was_taken_back(event, spared)",
        "if True",
        _STORY,
    ),
    Mutant(
        "a report takes how long a hang has lasted for how long a step takes",
        "launcher/reports/limits.py",
        "    if member.seen_ns is None or member.last_sign_ns is None or not life.is_over:\n",
        "    if True:\n",
        _RECOMMEND,
    ),
    Mutant(
        "a report counts saves beside steps as checkpointing",
        "launcher/reports/rank_lives.py",
        "        return max(0, took_ns - self.beside_ns)\n",
        "        return took_ns\n",
        _LEDGER,
    ),
    Mutant(
        "a report counts a training that stops itself as a failure",
        "launcher/reports/recommend.py",
        "(generation.has_failed or is_gone) and not generation.is_stopped_on_purpose\n",
        "generation.has_failed or is_gone\n",
        _RECOMMEND,
    ),
    Mutant(
        "a report rests on the saves of the last generation alone",
        "launcher/reports/recommend.py",
        "        count += len(life.saves) or section.closed\n",
        "        count = len(life.saves) or section.closed\n",
        _RECOMMEND,
    ),
    Mutant(
        "a report takes the last line of a node that was lost for all that was done",
        _TOGETHER,
        "    told = [member for member in members if member.lives and not member.is_silent] or members\n",
        "    told = members\n",
        _GAPS,
    ),
    Mutant(
        "a report leaves out what a launcher that was killed has not written, and another run went on from",
        _LOST,
        "    return own[0], max(own[1], successor.first_iteration - 1)\n",
        "    return own\n",
        _GAPS,
    ),
    Mutant(
        "a report takes any exception out of a section for the end of a step",
        _TOGETHER,
        "(section is None and (steps is None or not steps.closed))",
        "section is None",
        _LEDGER,
    ),
    Mutant(
        "a report waits for the steps of ranks that have ended well",
        _TOGETHER,
        "for m in under_way or told for rank",
        "for m in told for rank",
        _STORY,
    ),
    Mutant(
        "a report tells what a failure cost where iterations begin anew",
        _CUTS,
        "    if loss.is_cut or loss.kept in (Kept.PART, Kept.UNKNOWN):\n",
        "    if loss.is_cut or loss.kept is Kept.PART:\n",
        _GAPS,
    ),
    Mutant(
        "a report recommends short limits from little",
        "launcher/reports/recommend.py",
        "least = max(floor, _LEAST_LIMIT_SECONDS) if is_thin else _LEAST_LIMIT_SECONDS",
        "least = _LEAST_LIMIT_SECONDS",
        _RECOMMEND,
    ),
    Mutant(
        "a report takes the time between failures for certain",
        "launcher/reports/recommend.py",
        "    low, high = poisson_interval(failures)\n",
        "    low, high = float(failures), float(failures) or 1.0\n",
        _RECOMMEND,
    ),
    Mutant(
        "a report leaves a gap between two spans",
        "launcher/reports/timeline.py",
        "            yield Span(now, start, DOWN, None, None, None, ())\n",
        "            pass\n",
        _STORY,
    ),
    Mutant(
        "a report mixes two jobs that ran at the same time",
        "launcher/reports/notes.py",
        "                if seen.setdefault(rank, folder) != folder:\n",
        "                if False:\n",
        _STORY,
    ),
    Mutant(
        "a report lets a rank's text control the terminal",
        "launcher/reports/terminal.py",
        '    line = readable(line).replace("\\n", " ").rstrip()\n',
        '    line = line.replace("\\n", " ").rstrip()\n',
        _COMMAND,
    ),
    Mutant(
        "a report calls it productive what was certainly done again",
        _CUTS,
        "if life is None or loss.kept is Kept.PART:",
        "if life is None:",
        _GAPS,
    ),
    Mutant(
        "a report states that nothing was done again where ranks tell of no steps",
        _LOST,
        "    return has_worked or not story.has_steps  # where",
        "    return False  # where",
        _GAPS,
    ),
    Mutant(
        "a report takes for detection what lost lines would have told",
        _TOGETHER,
        "        cut_ns = max((life.last_ns for life in ranks.values()), default=None)\n",
        "        pass\n",
        _GAPS,
    ),
    Mutant(
        "a report says no word of lines of figures that were lost",
        "launcher/reports/rank_lives.py",
        "            if lost := sum(_lost_lines(file)):\n",
        "            if (lost := 0):\n",
        _GAPS,
    ),
    Mutant(
        "a report names nobody where the folder of an incident is missing",
        "launcher/reports/troubles.py",
        "if not own and found.story is None and (told := tuple(_named(story, generation))):",
        "if not own and found.story is None and (told := ()):",
        _GAPS,
    ),
    Mutant(
        "a report leaves out the generation that ran when files were removed",
        "launcher/reports/launches.py",
        "generations=tuple(() if began else generations_unstarted(named, lines))",
        "generations=tuple(())",
        _GAPS,
    ),
    Mutant(
        "a report counts the checkpoints before the first line that is left",
        _CUTS,
        " - life.checkpointing_ns(first_ns)  # its first",
        "  # its first",
        _GAPS,
    ),
    Mutant(
        "a report's rows come to less than the wall time once a node is lost",
        _CUTS,
        "    entries += _absent(story)\n",
        "",
        _GAPS,
    ),
    Mutant(
        "a job that has lost a node has no end",
        "launcher/reports/build.py",
        "    lost = silent if len(silent) < len(indices) else []",
        "    lost: list[int] = []",
        _GAPS,
    ),
)

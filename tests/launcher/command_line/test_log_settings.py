"""What is read of a launcher's command line before it is parsed is what the parser makes of it."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from launcher.command_line import log_settings as module
from launcher.command_line.log_settings import log_settings, value_of
from launcher.records.console import DEBUG, ERROR, INFO


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("--ft-log-level DEBUG --ft-log-level ERROR t.py", ERROR),
        ("--ft-log-level=DEBUG --ft_param_log_level=ERROR t.py", ERROR),
        ("--ft-log-level ERROR t.py --ft-log-level DEBUG", ERROR),
        ("--standalone --ft-log-level ERROR -m --no_python t --ft-log-level DEBUG", ERROR),
        ("-r3 -t 3 --nnodes=1 --ft-log-level ERROR t.py --ft-log-level DEBUG", ERROR),
        ("t.py --ft-log-level DEBUG", INFO),
        ("--ft-log-level", INFO),
        ("", INFO),
    ],
)
@pytest.mark.parametrize("called", ["ft_launcher", "srun -n 2 /usr/bin/ft_launcher", "python -m launcher"])
def test_of_an_option_that_is_given_twice_the_last_counts_and_those_of_the_script_do_not(
    called: str, words: str, level: int
) -> None:
    assert log_settings([*called.split(), *words.split()]).level == level


def test_where_the_launcher_has_another_name_every_word_may_be_its() -> None:
    assert log_settings(["./run.sh", "--ft-log-level", "ERROR", "--ft-log-level", "DEBUG"]).level == DEBUG
    assert value_of(["./run.sh", "--log-dir", "a", "--log_dir=b"], "log_dir") == "b"


def test_every_option_without_a_value_is_known() -> None:
    flags = {name for action in get_args_parser()._actions if action.nargs == 0 for name in action.option_strings}
    assert {name.replace("_", "-") for name in flags} <= module._FLAGS

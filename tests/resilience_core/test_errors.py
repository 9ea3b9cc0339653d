"""What the exceptions do beyond being raised."""

import subprocess
import sys

import pytest

from resilience_core.errors import ResilienceError, StopTraining


def test_stop_training_that_nobody_catches_ends_the_process_with_its_code() -> None:
    """As sys.exit does: a distinct exit needs no help from the framework."""
    program = "from resilience_core import StopTraining; raise StopTraining('rank 3 is slow', exit_code=79)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)

    assert (ended.returncode, ended.stderr) == (79, "")


def test_stop_training_is_one_of_ours_and_says_why() -> None:
    with pytest.raises(ResilienceError, match="rank 3 is slow"):
        raise StopTraining("rank 3 is slow")

"""Every phase of a restart is in the event log, in the order in which it happened."""

import pytest

pytestmark = pytest.mark.e2e


def test_each_phase_of_a_restart_is_stamped(launch, tmp_path):
    """From the death that was seen to the first sign of life of the next generation."""
    script = tmp_path / "restarts.py"
    script.write_text(
        "import os\n"
        "from resilience_core import RankMonitorClient\n"
        "client = RankMonitorClient()\n"
        "client.init_workload_monitoring()\n"
        "with client.section('step'):\n"
        "    if os.environ['FT_RESTART_COUNT'] == '0':\n"
        "        os._exit(5)\n"
        "client.shutdown_workload_monitoring()\n"
    )
    job = launch(script, options=("--max-restarts", "1"))
    assert job.wait(60) == 0, job.stderr

    stamps = {}
    for event in job.events():
        stamps.setdefault((event["event"], event.get("generation")), event["t_ns"])
    of_the_restart = [
        stamps["seen", 0],
        stamps["asked", 0],
        stamps["stopped", 0],
        stamps["rendezvous", 1],
        stamps["started", 1],
        stamps["phases", 1],
    ]
    assert of_the_restart == sorted(of_the_restart)
    (told,) = [event["ranks"] for event in job.events("phases") if event["generation"] == 1]
    for rank in told.values():
        assert stamps["stopped", 0] < rank["initialised_ns"] < rank["first_sign_ns"] < stamps["phases", 1]


def test_a_warm_worker_stamps_its_first_line(launch, tmp_path):
    """Between the launcher's order and whatever the script does first."""
    script = tmp_path / "says.py"
    script.write_text("print('hello')\n")

    job = launch(script, nproc=1, worker_start="warm")

    assert job.wait(60) == 0, job.stderr
    (told,) = job.events("phases")
    (started,) = job.events("started")
    assert started["t_ns"] - 1_000_000_000 < told["ranks"]["0"]["first_line_ns"] < told["t_ns"]
    assert told["ranks"]["0"]["initialised_ns"] is None

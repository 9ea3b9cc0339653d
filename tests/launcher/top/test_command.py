"""One snapshot, as text and as JSON, and which run is meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.top import main
from launcher.top.options import make_parser
from launcher.top.source import NoRunError, open_run

MakeRun = Callable[..., Any]
PROGRAM = "import sys; from launcher.top import main; sys.exit(main())"


def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120, **options
    )


@pytest.fixture
def run(make_run: MakeRun) -> Any:
    run = make_run()
    run.begin()
    run.start([0, 1])
    run.ranks[0].open("step", limit=100, age=1, iteration=3)
    run.ranks[1].open("step", limit=1, age=7, iteration=2)
    return run


def test_a_pipe_gets_one_snapshot_as_text(run: Any) -> None:
    said = call(str(run.path))
    assert (said.returncode, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert lines[0].startswith("run run-1, began ")
    assert lines[4].split() == ["rank", "section", "iteration", "age", "left", "steps/s", "restarts", "memory"]
    assert [line.split()[:3] for line in lines[5:]] == [["1", "step", "2"], ["0", "step", "3"]]
    assert "\x1b" not in said.stdout


def test_json(run: Any) -> None:
    run.write("hang", generation=0, culprits=[1], folder="/nowhere")
    said = call(str(run.path), "--json")
    assert (said.returncode, said.stderr) == (0, "")
    document = json.loads(said.stdout)
    assert document["version"] == 1
    assert (document["run"], document["log_folder"]) == ("run-1", str(run.path))
    (node,) = document["nodes"]
    assert (node["state"], node["generation"], node["restarts"], node["max_restarts"]) == ("goes on", 0, 0, 3)
    assert node["last_incident"]["culprits"] == [1]
    late, other = document["ranks"]
    assert (late["rank"], late["section"], late["iteration"], late["is_late"]) == (1, "step", 2, True)
    assert (late["restarts"], late["caused"], other["caused"]) == (0, 1, 0)
    assert late["age_seconds"] >= 7
    assert late["seconds_left"] == pytest.approx(-6, abs=5)
    assert other["resident_memory_bytes"] > 1 << 20
    assert other["steps_per_second"] is None


def test_a_run_that_has_ended_says_how(run: Any) -> None:
    run.end("failed", 1, "no restarts left")
    said = call(str(run.path))
    assert said.returncode == 0
    assert "the run has ended at " in said.stdout
    assert "failed, exit code 1: no restarts left" in said.stdout
    (node,) = json.loads(call(str(run.path), "--json").stdout)["nodes"]
    assert (node["state"], node["ended"]["exit_code"]) == ("has ended", 1)


def test_without_an_argument_the_newest_run_that_goes_on(run: Any, make_run: MakeRun) -> None:
    make_run("run-2").begin()
    ended = make_run("run-3")
    ended.begin()
    ended.end()
    for number, name in enumerate(("run-1", "run-2", "run-3")):
        path = run.logs / name / "events.jsonl"
        os.utime(path, (path.stat().st_mtime, path.stat().st_mtime + number))
    said = call("--json", cwd=run.logs.parent)
    assert json.loads(said.stdout)["run"] == "run-2"


def test_where_none_goes_on_it_says_what_it_has_found(run: Any, make_run: MakeRun) -> None:
    run.end("failed", 1)
    lost = make_run("run-2")
    lost.begin()
    lost.folder.remove()
    said = call(cwd=run.logs.parent)
    assert said.returncode == 1
    lines = said.stderr.splitlines()
    assert lines[0] == "ft_top: no run in ft_logs goes on; the newest:"
    assert sorted(line.split(",")[0].strip() for line in lines[1:]) == ["run-1", "run-2"]
    assert any("run-1, began 20" in line and line.endswith(": failed, exit code 1") for line in lines)
    assert any(line.endswith("it was killed, or it runs in another container") for line in lines)


def test_a_run_that_ended_without_an_exit_code_has_none(run: Any) -> None:
    run.end("broken off", None)
    said = call(cwd=run.logs.parent)
    assert said.stderr.splitlines()[1].endswith(": broken off")


@pytest.mark.parametrize("in_its_place", ["nothing", "pipe", "empty file"])
def test_of_an_ended_run_without_its_events_nothing_is_said_of_incidents(tmp_path: Path, in_its_place: str) -> None:
    events = tmp_path / "events.jsonl"
    (tmp_path / "figures.jsonl").write_text("{}\n")
    if in_its_place == "nothing":
        said = call(str(tmp_path))
        assert said.returncode == 1
        assert "the log folder of a run whose file of events is missing" in said.stderr
        return
    if in_its_place == "pipe":
        os.mkfifo(events)
    else:
        events.touch()
        os.utime(events, (1.0, 1.0))
    said = call(str(tmp_path))
    assert "incidents: unknown, as events of the run are not here" in said.stdout.splitlines()
    assert "0 restarts" not in said.stdout


_NOT_STARTING = [b"\0" * 200, b'{"event": "began", "t_ns": 1, "ti', b"once upon a time\n", b'{"event": "x"}\n']


@pytest.mark.parametrize("raw", [b"", *_NOT_STARTING])
def test_where_no_event_can_be_read_nothing_is_known_of_the_run(tmp_path: Path, raw: bytes) -> None:
    """Its file is young, as where it was emptied or damaged while the run went on."""
    path = tmp_path / "ft_logs" / "run-1"
    path.mkdir(parents=True)
    (path / "events.jsonl").write_bytes(raw)
    said = call(str(path), "--once")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[1:] == [
        "node unknown, ? restarts used",
        "no event can be read in events.jsonl, so whether it goes on is not known; ft_report tells what is left of it"
        if raw
        else "events.jsonl is empty: the run is starting, or its events were removed",
        "incidents: unknown, as events of the run are not here",
    ]
    (node,) = json.loads(call(str(path), "--json").stdout)["nodes"]
    assert [node[name] for name in ("state", "restarts", "nodes", "is_protected", "monitor_replacements")] == [None] * 5
    if raw:
        said = call(cwd=tmp_path)
        assert said.returncode == 1
        assert said.stderr.splitlines()[1].startswith("  run-1: no event can be read in events.jsonl, so whether it")


def test_a_run_is_named_by_folder_name_run_folder_or_its_id(
    run: Any, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.logs.parent)
    monkeypatch.setattr("launcher.top.source.DEFAULT_PARENT", os.path.dirname(run.folder.path))
    for named in (str(run.path), "ft_logs/run-1", "run-1", "ft_logs", str(run.logs), run.folder.path):
        live = open_run(named)
        assert live.path == str(run.path), named
        live.close()
    for named in (os.path.basename(run.folder.path), run.folder.path.rpartition("-")[2]):
        live = open_run(named)
        assert live.path == str(run.path), named
        live.close()
    monkeypatch.chdir("/")
    live = open_run(run.folder.path)  # its log folder is not found from here
    assert len(live.look().ranks) == 2
    live.close()


@pytest.mark.parametrize("named", ["nothing", "/nowhere/at/all", "a/b"])
def test_what_is_no_run_is_refused(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoRunError, match="is no run") as raised:
        open_run(named)
    assert raised.value.exit_code == 2


def test_an_empty_folder_and_a_missing_one(tmp_path: Path) -> None:
    said = call(str(tmp_path))
    assert (said.returncode, said.stderr) == (
        1,
        f"ft_top: there is no run in {tmp_path}: none of its folders has a file of events\n",
    )
    said = call(cwd=tmp_path)
    assert said.returncode == 2
    assert said.stderr.startswith("ft_top: there is no folder ft_logs here")


def test_a_log_of_another_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "began", "t_ns": 1, "version": 9}\n')
    said = call(str(tmp_path))
    assert said.returncode == 1
    assert "has version 9" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--interval", "0"), "not between 0.05 and"),
        (("--interval", "nan"), "not between 0.05 and"),
        (("--interval", "x"), "no number of seconds"),
        (("--metrics", "ftp://x"), "no URL of http or https"),
        (("--metrics", ""), "'' names no node"),
        (("--metrics", ",,"), "',,' names no node"),
        (("--metrics", "node1:9400,node2:99999"), "'node2:99999' has no port from 1 to 65535"),
        (("--metrics", "node1:0"), "'node1:0' has no port from 1 to 65535"),
        (("--metrics", "node1:"), "'node1:' has no port from 1 to 65535"),
        (("--metrics", "http:/node1"), "no port from 1 to 65535"),
        (("--metrics", "node1:x"), "no port from 1 to 65535"),
        (("--metrics", ":9400"), "':9400' names no host"),
        (("--metrics", "http://"), "'http://' names no host"),
        (("--metrics", "http:///metrics"), "names no host"),
        (("--metrics", "[::1:9400"), "no valid host"),
        (("--metrics", "node 1:9400"), "characters that no URL has"),
        (("--metrics", "node\x1b[31m:9400"), "'node\\x1b[31m:9400' has characters"),
    ],
)
def test_options_that_make_no_sense(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["node1", "node1:9400, node2:9400,", "HTTPS://[fe80::1]:65535/x", "http://10.0.0.1/"])
def test_addresses_of_nodes(text: str) -> None:
    assert make_parser().parse_args(["--metrics", text]).metrics == [each.strip() for each in text.split(",") if each]


def test_the_name_of_a_folder_controls_no_terminal(tmp_path: Path) -> None:
    odd = tmp_path / "a\nft_top: all is well\x1b[31m"
    (odd / "lost" / "run").mkdir(parents=True)
    (odd / "lost" / "run" / "events.jsonl").write_text("no event\n")
    (odd / "figures").mkdir()
    (odd / "figures" / "figures.jsonl").touch()
    (odd / "version").mkdir()
    (odd / "version" / "events.jsonl").write_text('{"event": "began", "t_ns": 1, "version": 9}\n')
    for arguments, place in (
        ([str(odd)], tmp_path),
        ([str(odd / "lost")], tmp_path),
        ([str(odd / "figures")], tmp_path),
        ([str(odd / "version")], tmp_path),
        ([str(odd / "none")], tmp_path),
        (["ft\n\x1b[31m"], tmp_path),
        ([], odd),
    ):
        said = call(*arguments, cwd=place)
        assert said.returncode in (1, 2), arguments
        assert "\x1b" not in said.stderr, arguments
        assert all(line.startswith(("ft_top: ", "  ")) for line in said.stderr.splitlines()), said.stderr
        assert "\nft_top: all is well" not in said.stderr, arguments


def test_of_a_run_folder_alone_restarts_and_incidents_are_not_known(run: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    said = call(run.folder.path, "--once", cwd=tmp_path / "elsewhere")
    lines = said.stdout.splitlines()
    assert lines[1].endswith("generation 0, ? restarts used")
    assert lines[2] == "incidents: unknown, as events of the run are not here"
    assert [line.split()[-3] for line in lines[5:]] == ["-", "-"]
    document = json.loads(call(run.folder.path, "--json", cwd=tmp_path / "elsewhere").stdout)
    (node,) = document["nodes"]
    assert (node["restarts"], node["nodes"], node["last_incident"], node["is_protected"]) == (None, None, None, None)
    assert {(rank["restarts"], rank["caused"]) for rank in document["ranks"]} == {(None, None)}


def test_a_run_whose_log_folder_was_emptied_is_shown_with_its_ranks(run: Any) -> None:
    run.stop()
    run.start([0, 1], restarts=2)
    os.unlink(run.log.path)
    run.write("checkpoint", generation=1)  # whatever comes next
    said = call(str(run.path), "--once").stdout.splitlines()
    assert said[0] == "run run-1"
    assert said[1].endswith("generation 1, 2 of 3 restarts used")
    assert said[2] == "incidents: unknown, as events of the run are not here"
    assert sorted(line.split()[0] for line in said[5:]) == ["0", "1"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_encoding_of_the_output_has_not_is_escaped(run: Any, encoding: str) -> None:
    run.ranks[0].open("größe→", limit=100, age=1, iteration=3)
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for arguments in (["--once"], ["--json"]):
        command = [sys.executable, "-c", PROGRAM, *arguments, str(run.path)]
        said = subprocess.run(command, capture_output=True, timeout=120, check=True, env=environment)
        assert said.stderr == b""
        if arguments == ["--json"]:
            json.loads(said.stdout)
        else:
            assert "größe→".encode(encoding, "backslashreplace") in said.stdout


def test_a_reader_that_goes_away_is_no_error(run: Any) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run.path)], stdout=writing, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writing)
    assert (said.returncode, said.stderr) == (0, b"")


def test_closed_descriptors_are_no_way_to_write_into_a_run(run: Any) -> None:
    before = {path: path.read_bytes() for path in Path(run.folder.path).rglob("*") if path.is_file()}
    log = Path(run.log.path).read_bytes()
    said = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "{PROGRAM}" "$1" <&- >&-', sys.executable, str(run.path)],
        capture_output=True,
        timeout=120,
    )
    assert said.returncode == 1
    assert b"Bad file descriptor" in said.stderr
    said = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "{PROGRAM}" "$1" <&- >&- 2>&-', sys.executable, str(run.path)], timeout=120
    )
    assert said.returncode == 1
    assert before == {path: path.read_bytes() for path in Path(run.folder.path).rglob("*") if path.is_file()}
    assert Path(run.log.path).read_bytes() == log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_users_run_is_refused_with_the_reason(open_run: Any) -> None:
    run = open_run
    program = f"import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n{PROGRAM}"
    # What is imported must be readable for that user, too: it is loaded before.
    program = "import launcher.top.command, encodings.idna\n" + program
    said = subprocess.run([sys.executable, "-c", program, str(run.path)], capture_output=True, text=True, timeout=120)
    assert said.returncode == 1
    assert said.stderr == (
        f"ft_top: the run folder {run.folder.path} is private to the user with uid 0; run ft_top as that user\n"
    )


def test_other_nodes_are_one_line_where_they_are_silent(run: Any, unused_port: Callable[[], int]) -> None:
    port = unused_port()
    said = call(str(run.path), "--metrics", f"http://127.0.0.1:{port}")
    assert f"http://127.0.0.1:{port}/metrics: [Errno 111] Connection refused, silent for" in said.stdout
    document = json.loads(call(str(run.path), "--json", "--metrics", f"127.0.0.1:{port}").stdout)
    assert document["other_nodes"][0]["problem"].startswith("[Errno 111] Connection refused")

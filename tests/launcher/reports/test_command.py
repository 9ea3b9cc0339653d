"""ft_report as people and programs use it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.report import main
from launcher.reports.build import make_report
from launcher.reports.formats import duration
from launcher.reports.model import Report
from launcher.reports.terminal import lines
from tests.launcher.reports.invented_runs import invent_run, invent_runs


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    run = invent_run(tmp_path_factory.mktemp("run"), slow_iteration=5, near_misses=2, ranks=4, nodes=2, failures=7)
    return make_report([str(folder) for folder in run.folders])


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_is_never_wider_than_it_is(report: Report, width: int) -> None:
    assert max(map(len, lines(report, width))) <= width
    assert not any("\x1b" in line for line in lines(report, width))
    assert any("\x1b[1mWHERE THE TIME WENT" in line for line in lines(report, width, is_styled=True))


def test_a_screen_tells_everything_that_matters(report: Report) -> None:
    text = " ".join("\n".join(lines(report)).split())
    for part in (
        "RUN invented 4 ranks on 2 nodes, succeeded (exit code 0), 7 restarts",
        "; 284 steps kept, ",
        "lost work",
        "together",
        "100.0 %",
        "INCIDENTS 7, the last 5 of them",
        "rank 1 on node0 at load_batch (/invented/train.py:",
        "CLOSE 2 verdict(s) taken back, 4 at 80 % of a limit",
        "section step 30 s 27.0 s",
        " 10 % short",
        "Save every ",
        "Raise the limit of section step from 30 s (configured) to 140 s",
    ):
        assert part in text, part


def test_figures_are_the_same_for_programs_and_people(report: Report) -> None:
    text = "\n".join(lines(report))
    for entry in report.ledger.entries:
        assert f"{entry.seconds:,.1f} s" in text


def test_a_text_of_a_rank_cannot_control_the_terminal(tmp_path: Path) -> None:
    run = invent_run(tmp_path, "named\x1b[2J", failures=1, ranks=2)
    path = run.folders[0] / "incidents" / "0001" / "incident.json"
    incident = json.loads(path.read_text())
    incident["why"] = "\x1b[2J\nft_launcher: all is well"
    path.write_text(json.dumps(incident))
    text = "\n".join(lines(make_report([str(run.folders[0])])))
    assert "\x1b" not in text
    assert "\\x1b[2J ft_launcher: all is well" in text
    assert "RUN named\\x1b[2J\n" in text


def test_json_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = invent_run(tmp_path)
    assert main(["--json", "-", str(run.folders[0])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1
    assert document["ledger"]["repeated"] == run.truth.repeated
    assert [entry["category"]["key"] for entry in document["ledger"]["entries"]][:2] == ["productive", "checkpointing"]
    target = tmp_path / "report.json"
    assert main(["--json", str(target), str(run.folders[0])]) == 0
    assert json.loads(target.read_text())["ledger"] == document["ledger"]
    assert "WHERE THE TIME WENT" in capsys.readouterr().out


def test_a_page_goes_to_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = invent_run(tmp_path)
    assert main(["--html", "-", str(run.folders[0])]) == 0
    written = capsys.readouterr()
    assert written.out.startswith("<!doctype html>")
    assert written.out.endswith("</html>\n")
    assert written.err == ""
    assert not Path("-").exists()
    assert main(["--html", "-", "--json", "-", str(run.folders[0])]) == 2
    assert capsys.readouterr().err.startswith("ft_report: error: --html - and --json - are two documents")


def test_without_standard_output_it_says_so(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    command = f"exec {sys.executable} -m launcher.report {run.folders[0]} >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("ft_report: error: standard output is closed")


def with_words(folder: Path) -> Path:
    """Return the folder of a run whose incident has characters in it that no old encoding has."""
    run = invent_run(folder, failures=1)
    path = run.folders[0] / "incidents" / "0001" / "incident.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"why": "größer → 你好 \ud800"}))
    return run.folders[0]


@pytest.mark.parametrize("settings", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C"}])
def test_what_the_encoding_of_the_output_has_not_is_escaped(tmp_path: Path, settings: dict[str, str]) -> None:
    command = [sys.executable, "-m", "launcher.report", str(with_words(tmp_path))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONIO"))}
    for more in ([], ["--html", "-"], ["--json", "-"]):
        done = subprocess.run(
            [*command, *more], capture_output=True, check=True, timeout=60, env=environment | settings
        )
        assert done.stderr == b""
        if not more:
            encoding = settings.get("PYTHONIOENCODING", "utf-8")
            assert "größer → 你好 \ud800".encode(encoding, "backslashreplace") in done.stdout


def test_what_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = invent_run(tmp_path)
    assert main([str(run.folders[0]), "--json", "/dev/full"]) == 2
    assert capsys.readouterr().err == "ft_report: error: /dev/full: No space left on device\n"


def test_two_documents_are_not_written_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(invent_run(tmp_path).folders[0])
    (tmp_path / "there").write_text("kept")
    (tmp_path / "linked").symlink_to("x")
    os.link("there", "hard")
    for one, other in (("x", "x"), ("x", "./x"), ("x", str(tmp_path / "x")), ("x", "linked"), ("there", "hard")):
        assert main([folder, "--html", one, "--json", other]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"ft_report: error: --html {one} and --json {other} name the same file")
    assert not (tmp_path / "x").exists()
    assert (tmp_path / "there").read_text() == "kept"
    assert main([folder, "--html", "x", "--json", "y"]) == 0
    assert json.loads((tmp_path / "y").read_text())["version"] == 1


def test_an_empty_name_leads_to_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([""]) == 2
    assert capsys.readouterr().err.startswith("ft_report: error: an empty name leads to no run; name the log folder")


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_an_empty_name_is_no_file(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["anywhere", option, ""])
    assert raised.value.code == 2
    assert f"argument {option}: an empty name is no file; name one, or '-'" in capsys.readouterr().err


def test_the_name_of_a_folder_controls_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a\nft_report: all is well\x1b[31m"
    odd.mkdir()
    assert main([str(odd)]) == main([str(odd / "none")]) == 2
    assert main([str(invent_run(tmp_path).folders[0]), "--html", str(odd / "x.html")]) == 0
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert [line.partition("/")[0] for line in said.splitlines()] == ["ft_report: error: "] * 2 + [
        "ft_report: written: "
    ]


def test_what_cannot_be_read_is_not_blamed_on_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_report(*_: object) -> Report:
        raise OSError(errno.EIO, "Input/output error")  # as of read(), which knows of no name

    run = invent_run(tmp_path)
    monkeypatch.setattr("launcher.report.make_report", make_report)
    assert main([str(run.folders[0])]) == 2
    assert capsys.readouterr().err == "ft_report: error: a file of the run cannot be read: Input/output error\n"


def test_without_standard_error_its_messages_do_not_go_into_the_document(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    arguments = f"{run.folders[0]} --json - --html {tmp_path}/page.html"
    command = f"exec {sys.executable} -m launcher.report {arguments} 2>&-"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, check=True, timeout=60)
    json.loads(done.stdout)


def test_several_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = invent_runs(tmp_path, 2)
    assert main([str(run.folders[0]) for run in runs]) == 0
    said = capsys.readouterr().out
    assert "RUN run-0 and 1 more\n  2 ranks on 1 node, succeeded (exit code 0), 3 restarts\n" in said
    assert f"run-0: {duration(runs[0].seconds)}, failed (exit code 1)" in said
    assert "between runs" in said


def test_what_cannot_be_done_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith(f"ft_report: error: {tmp_path}/nothing is not there; name the log folder")
    run = invent_run(tmp_path)
    (tmp_path / "plain").touch()
    for option in ("--json", "--html"):
        for name, said in (
            ("no/file", "No such file or directory; make its folder first, or name a file in another one"),
            ("plain/file", "Not a directory; name a file in a folder"),
            (".", "Is a directory; name a file in it"),
        ):
            assert main([str(run.folders[0]), option, f"{tmp_path}/{name}"]) == 2
            assert capsys.readouterr().err == f"ft_report: error: {tmp_path}/{name}: {said}\n"


def test_it_needs_neither_torch_nor_another_package_and_ends_quietly_in_a_pipe_that_closes(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    code = (
        "import sys\n"
        "from launcher.report import main\n"
        "code = main(sys.argv[1:])\n"
        "others = {'torch', 'numpy', 'attr', 'yaml', 'pluggy', 'rich'} & set(sys.modules)\n"
        "print(others, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    command = [sys.executable, "-c", code, str(run.folders[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    piped = subprocess.run(
        f"{sys.executable} -m launcher.report --json - {run.folders[0]} | head -c 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert piped.stderr == ""
    assert piped.stdout == "{0\n"


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_of_the_run_is_not_written_over(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = invent_run(tmp_path, failures=1).folders[0]
    log = tmp_path / "stragglers.jsonl"
    (folder / "checkpoint").write_text("of the run")
    (tmp_path / "linked").symlink_to(folder / "events.jsonl")
    (tmp_path / "latest").symlink_to(folder)
    (tmp_path / "outside").mkdir()
    (folder / "figures-2.jsonl").symlink_to((folder / "figures.jsonl").rename(tmp_path / "outside" / "figures"))
    (folder / "figures-2.jsonl").rename(folder / "figures.jsonl")
    files = [path for path in folder.rglob("*") if path.is_file()]
    contents = {path: path.read_bytes() for path in files}
    log.write_text("{}\n")
    assert len(files) >= 5
    for path in (*files, tmp_path / "linked", tmp_path / "latest" / "events.jsonl", log):
        for named in (folder, tmp_path, tmp_path / "latest"):
            if named == tmp_path and path == log:
                continue
            assert main([str(named), option, str(path), "--straggler-log", str(log)]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            assert said.err.startswith(f"ft_report: error: {option} {path}: it is ")
            assert "name a file that is not there yet" in said.err
    assert {path: path.read_bytes() for path in files} == contents
    assert log.read_text() == "{}\n"


def test_a_report_beside_the_files_of_a_run_is_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = invent_run(tmp_path, failures=1).folders[0]
    document, shown = folder / "report.json", folder / "report.html"
    elsewhere = tmp_path.parent / f"{tmp_path.name}.txt"  # no file of the run: whoever names it knows what it is
    elsewhere.write_text("old")
    for _ in range(2):
        assert main([str(folder), "--json", str(document), "--html", str(shown)]) == 0
        assert json.loads(document.read_text())["version"] == 1
        assert shown.read_text().endswith("</html>\n")
    assert main([str(folder), "--json", str(shown), "--html", str(elsewhere)]) == 0
    assert json.loads(shown.read_text())["version"] == 1
    assert elsewhere.read_text().startswith("<!doctype html>")
    assert main([str(folder), "--json", "-"]) == 0
    assert "error" not in capsys.readouterr().err


def test_neither_another_run_nor_one_to_which_a_link_leads_is_written_over(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    other, own = invent_run(logs, "other").folders[0], invent_run(tmp_path / "elsewhere", "own").folders[0]
    (logs / "latest").symlink_to(own)
    for path in (other / "events.jsonl", own / "figures.jsonl"):
        before = path.read_bytes()
        assert main([str(logs), "--json", str(path)]) == 2
        assert path.read_bytes() == before
    assert main([str(own), "--json", str(other / "events.jsonl")]) == 0, "it is named, and no part of what is reported"

"""What CONTRIBUTING.md, the workflow and the templates name exists: files, make targets, versions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.command_line.torch_versions import NEWEST, OLDEST

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", ".github/pull_request_template.md")
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def table_under(heading: str) -> list[list[str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def steps() -> list[dict[str, Any]]:
    return [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_changes_begin_in_files_that_exist() -> None:
    changes = table_under("Where a change begins")
    assert len(changes) > 10
    for change, where in changes:
        paths = re.findall(r"`([\w/-]+\.(?:py|md))`", where)
        assert paths, change
        for path in paths:
            assert (ROOT / path).is_file(), f"{change}: {path} does not exist"


def test_the_folders_of_tests_exist() -> None:
    for folder, _ in table_under("Where a test goes"):
        if "<" not in folder:
            assert (ROOT / folder.strip("`")).is_dir(), folder


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_make_targets_that_exist(page: str) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", (ROOT / page).read_text(), re.MULTILINE))
    assert named - targets() == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_to_files(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if not link.startswith("http"):
            assert (ROOT / page).parent.joinpath(link).exists(), link


def test_the_folders_of_the_architecture_are_those_of_the_packages() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Folders")[2].partition("## ")[0]
    named = set(re.findall(r"\b([a-z_]+)/", text))
    for package in ("resilience_core", "straggler", "launcher"):
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders - named == set(), f"{package}: ARCHITECTURE.md does not name them"
    exist = {path.name for path in ROOT.glob("*/")} | {path.name for path in ROOT.glob("*/*/")}
    assert named - exist == set(), "ARCHITECTURE.md names folders that do not exist"


def test_the_workflow_runs_make_targets_only() -> None:
    commands = [step["run"] for step in steps() if "run" in step]
    assert {command.split()[1] for command in commands} >= {
        "docs",
        "matrix",
        "test",
        "test-rest",
    }
    for command in commands:
        assert command.startswith("make "), command
        assert command.split()[1] in targets(), command


def test_the_matrix_of_the_workflow_has_both_ends_of_the_range_and_every_python() -> None:
    rows = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["include"]
    tried = {row["torch"] for row in rows}
    assert {f"{OLDEST[0]}.{OLDEST[1]}", f"{NEWEST[0]}.{NEWEST[1]}"} <= tried
    pythons = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text()))
    assert {row["python"] for row in rows} == pythons


def test_the_templates_are_forms_that_github_reads() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form), path
            ids = [field["id"] for field in form["body"]]
            assert len(ids) == len(set(ids)), path


def test_pre_commit_runs_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].rpartition("/")[2] for hook in hooks}
    recipe = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert tools == set(re.findall(r"\.venv/bin/(\w[\w-]*)", recipe)) - {"python"}

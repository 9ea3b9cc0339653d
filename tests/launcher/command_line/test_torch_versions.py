"""The range of torch: what is refused, what is only warned about, and that setup.cfg and the matrix say the same."""

from __future__ import annotations

import configparser
import importlib.metadata
from pathlib import Path

import pytest

from launcher import cli
from launcher.command_line import torch_versions

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "installed", ["2.4.0", "2.13.0+cpu", "2.15.1", "2.16.0.dev20261120", "2.6.0a0+ecf3bae.nv25.1", ""]
)
def test_what_may_work_is_not_refused(installed: str) -> None:
    assert torch_versions.problem_with(installed) is None


@pytest.mark.parametrize("installed", ["2.3.1", "1.13.1+cu117", "2.3.0a0+40ec155e58.nv24.3"])
def test_what_cannot_work_is_refused_with_the_range_and_what_is_installed(
    installed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_versions, "installed_version", lambda: installed)

    assert cli.main(["--help"]) == 2
    said = capsys.readouterr().err
    assert f"torch {installed} is too old: ft_launcher works with torch 2.4 to 2.15" in said
    assert "pip install 'torch>=2.4'" in said


def test_no_torch_at_all_is_said_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["--help"]) == 2
    assert "torch is not installed; ft_launcher works with torch 2.4 to 2.15" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("installed", "is_new"), [("2.15.0+cu132", False), ("2.16.0", True), ("3.0.0", True), ("", False)]
)
def test_what_nobody_has_tried_is_warned_about(installed: str, is_new: bool) -> None:
    warning = torch_versions.warning_about(installed)
    assert (warning is not None) == is_new
    assert warning is None or installed in warning


def test_the_torch_of_these_tests_is_in_the_range() -> None:
    installed = torch_versions.installed_version()
    assert installed == importlib.metadata.version("torch")
    assert torch_versions.problem_with(installed) is None
    assert torch_versions.warning_about(installed) is None


def test_setup_cfg_requires_what_the_launcher_checks() -> None:
    metadata = configparser.RawConfigParser()
    metadata.read(ROOT / "setup.cfg")
    required = metadata["options"]["install_requires"].split()
    assert [each for each in required if each.startswith("torch")] == ["torch>={}.{}".format(*torch_versions.OLDEST)]


def test_the_documents_name_the_range() -> None:
    oldest, newest = ("{}.{}".format(*version) for version in (torch_versions.OLDEST, torch_versions.NEWEST))
    assert f"torch {oldest} to {newest}" in (ROOT / "README.md").read_text()

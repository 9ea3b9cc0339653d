"""Every snippet and every command of the documentation is run, in a folder of its own per page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import LANGUAGES, PAGES, ROOT, Block, Page, blocks

NOT_RUN_AT_MOST = 12
"""Blocks that need what no test machine has: GPUs, a second node, Slurm, an installation."""
LONG = (
    *("docs/how-to/lightning.md", "docs/how-to/huggingface.md"),  # every rank imports a framework
    *("docs/tutorial.md", "docs/configuration.md", "docs/other-launchers.md", "docs/how-to/stragglers.md"),
    *("docs/how-to/several-nodes.md", "docs/how-to/slurm.md", "docs/how-to/health-checks.md"),
    *("docs/how-to/megatron.md", "docs/how-to/write-a-plugin.md", "docs/how-to/metrics.md"),
    *("docs/how-to/notifications-and-spans.md", "docs/how-to/report.md", "docs/how-to/top.md", "docs/how-to/limits.md"),
    *("docs/how-to/containers.md", "docs/output.md", "docs/how-to/from-nvidia-resiliency-ext.md"),
)
"""Pages whose jobs take long together; `make test` runs the others, and the examples and options in other tests."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def runs(path: Path) -> bool:
    return any(block.language in ("bash", "python") and not block.not_run for block in blocks(path.read_text()))


@pytest.mark.e2e
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.long] if named(path) in LONG else [], id=named(path))
        for path in PAGES
        if runs(path)
    ],
)
def test_the_blocks_of_a_page_run(path: Path, tmp_path: Path) -> None:
    page = Page(tmp_path)
    for block in blocks(path.read_text(encoding="utf-8")):
        page.run(block)


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_block_says_what_it_is(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language!r}"
        assert block.not_run is None or len(block.not_run) > 10, f"line {block.line}: why is it not run?"


def test_few_blocks_are_not_run() -> None:
    left_out = [
        f"{named(path)}:{block.line}: {block.not_run}"
        for path in PAGES
        for block in blocks(path.read_text(encoding="utf-8"))
        if block.not_run is not None
    ]
    assert len(left_out) <= NOT_RUN_AT_MOST, "\n".join(left_out)


@pytest.mark.parametrize("said", ["0.012", "9.1275e-05", "60", "1e-05", "12,345.6"])
def test_a_number_stands_for_any_number_in_an_output(said: str, tmp_path: Path) -> None:
    page = Page(tmp_path)
    page.run(Block(1, "bash", "", f"echo 'age_seconds{{rank=\"1\"}} {said}'\n"))

    page.run(Block(4, "text", "output", 'age_seconds{rank="0"} 0.041\n'))
    with pytest.raises(AssertionError, match="nothing says"):
        page.run(Block(4, "text", "output", 'slack_seconds{rank="0"} 0.041\n'))

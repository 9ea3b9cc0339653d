"""The table of metrics in the documentation is the one of the exporter."""

from __future__ import annotations

from pathlib import Path

from launcher.metrics.families import FAMILIES

ROOT = Path(__file__).parents[2]


def test_the_table_of_metrics_is_that_of_the_exporter() -> None:
    page = (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    rows = [line for line in page.partition("\n## Every metric\n")[2].splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{family.name}` | {family.kind} | {_listed(family.labels)}| {family.meaning} |" for family in FAMILIES
    ]


def _listed(labels: tuple[str, ...]) -> str:
    return f"{', '.join(f'`{label}`' for label in labels)} " if labels else ""

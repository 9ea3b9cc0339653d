"""The dashboard and the rules of examples/grafana use names and labels that a node serves, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.metrics.families import COMMON_LABELS, FAMILIES, HISTOGRAM, sample_names

FOLDER = Path(__file__).parents[3] / "examples" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
GROUPS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
UNITS = {"none", "s", "cps", "bytes", "percentunit"}
"""Of Grafana's, those that the metrics have."""

SERVED = {
    name: {*COMMON_LABELS, *family.labels, *(["le"] if family.kind == HISTOGRAM and name.endswith("_bucket") else [])}
    for family in FAMILIES
    for name in sample_names(family)
}

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[a-zA-Z_:][\w:]*|[\d.]+[a-z]*|=~|!~|!=|==|>=|<=|\S')
OPERATORS = {"and", "or", "unless", "bool", "offset"}
GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


def problems(expression: str) -> list[str]:
    """What is wrong with the names and labels of an expression of PromQL."""
    tokens = TOKEN.findall(expression)
    found = []
    for index, token in enumerate(tokens):
        after = tokens[index + 1] if index + 1 < len(tokens) else ""
        if not re.match(r"[a-zA-Z_:]", token) or token in OPERATORS or _is_in_list(tokens, index):
            continue
        if token in GROUPINGS:
            labels, end = _listed(tokens, index + 1)
            within = tokens[end : _closing(tokens, end)] if tokens[end : end + 1] == ["("] else tokens
            metrics = [each for each in within if each in SERVED]
            lacking = {label for label in labels if not all(label in SERVED[metric] for metric in metrics)}
            if token in ("on", "ignoring", "group_left", "group_right"):  # one side may have it from a grouping
                lacking = {label for label in labels if not any(label in SERVED[metric] for metric in metrics)}
            found += [f"label {label} in {token}" for label in sorted(lacking)]
        elif after not in ("(", "by", "without"):
            if token not in SERVED:
                found.append(f"metric {token}")
            elif after == "{":
                end = tokens.index("}", index)
                matched = tokens[index + 2 : end : 4]
                found += [f"label {label} of {token}" for label in matched if label not in SERVED[token]]
    return found


def _is_in_list(tokens: list[str], index: int) -> bool:
    """Whether a token is a label: in braces, or in the list after a grouping."""
    for opening in range(index - 1, -1, -1):
        if tokens[opening] in "})":
            return False
        if tokens[opening] == "{":
            return True
        if tokens[opening] == "(":
            return opening > 0 and tokens[opening - 1] in GROUPINGS
    return False


def _listed(tokens: list[str], opening: int) -> tuple[list[str], int]:
    """The labels in a list, and the place after it."""
    end = tokens.index(")", opening)
    return [token for token in tokens[opening + 1 : end] if token != ","], end + 1


def _closing(tokens: list[str], opening: int) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index], 0)
        if depth == 0:
            return index
    return len(tokens)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_an_expression_uses_what_is_served(where: str, expression: str) -> None:
    assert problems(expression) == []


def test_the_variables_use_what_is_served() -> None:
    queries = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        (wanted,) = re.findall(r"label_values\((.*), (\w+)\)", query)
        assert problems(wanted[0]) == []
        assert wanted[1] in SERVED[wanted[0].partition("{")[0]]


def test_labels_in_texts_are_served() -> None:
    for panel in panels():
        for target in panel["targets"]:
            used = {label for name in TOKEN.findall(target["expr"]) for label in SERVED.get(name, ())}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= used, panel["title"]
    for rule in RULES:
        used = {label for name in TOKEN.findall(rule["expr"]) for label in SERVED.get(name, ())}
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= used, rule["alert"]


def test_every_panel_has_what_a_reader_needs() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"]
        assert all(target["legendFormat"] for target in panel["targets"])
    assert len({panel["title"] for panel in panels() if panel["type"] != "stat"}) == 16


def test_the_data_source_is_chosen_when_it_is_imported() -> None:
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", DASHBOARD["uid"]}
    assert [each["type"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "query", "query"]
    assert "id" not in DASHBOARD


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        squares = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not squares & places, panel["title"]
        places |= squares


def test_nearly_every_metric_is_shown() -> None:
    """Those that are not would need a panel of their own to say little."""
    used = {name for _, expression in expressions() for name in TOKEN.findall(expression)} & set(SERVED)
    shown = {family.name for family in FAMILIES if used & set(sample_names(family))}
    left_out = {"ft_run_info", "ft_straggler_reports_total", "ft_exporter_damaged_total"}
    assert {family.name for family in FAMILIES} - shown == left_out


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ('min(ft_slack_seconds{run="$run",rank=~"1|2"})', []),
        ("min(ft_slack)", ["metric ft_slack"]),
        ("rate(ft_restart_seconds[5m])", ["metric ft_restart_seconds"]),
        ('ft_slack_seconds{rnk="1"}', ["label rnk of ft_slack_seconds"]),
        ('ft_slack_seconds{rank="1",node!~"{x}",le="1"} > 0', ["label le of ft_slack_seconds"]),
        ("sum by (le, section) (rate(ft_section_duration_seconds_bucket[1m]))", []),
        ("sum by (section) (rate(ft_restart_seconds_bucket[1m]))", ["label section in by"]),
        ("sum without (rack) (ft_slack_seconds)", ["label rack in without"]),
        ("ft_iteration / on (rank, rack) ft_steps_total", ["label rack in on"]),
        ("ft_iteration and ft_nothing offset 5m", ["metric ft_nothing"]),
    ],
)
def test_a_wrong_name_is_found(expression: str, wrong: list[str]) -> None:
    assert problems(expression) == wrong

"""Where a node listens, who begins the job, what nodes are sorted by, and what they prove to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.distributed import run as torchrun

from launcher.agent.open_plane import given_node_rank, order_of, parse_contacts, secret_of, with_terms
from launcher.nodes.policy import Policy
from resilience_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node0:29400", (("node0", 29400),)),
        ("node0", (("node0", 29400),)),
        ("a:1, b:2", (("a", 1), ("b", 2))),
        ("10.0.0.1:5", (("10.0.0.1", 5),)),
        ("[fe80::1]:5", (("fe80::1", 5),)),
        ("fe80::1", (("fe80::1", 29400),)),
    ],
)
def test_an_endpoint_names_one_node_or_several(text: str, expected: Any) -> None:
    assert parse_contacts(text) == expected


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:x", ":5", "a,,b", "[fe80::1]:x"])
def test_an_endpoint_that_is_none_is_refused_with_its_part(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rdzv-endpoint .* is not HOST or HOST:PORT"):
        parse_contacts(text)


@pytest.mark.parametrize(
    ("given", "node_rank", "environ", "expected"),
    [
        (None, None, {}, ""),
        ("rack7-node12", 4, {"SLURM_NODEID": "3"}, "rack" + "7".zfill(20) + "-node" + "12".zfill(20)),
        (None, 4, {"SLURM_NODEID": "3"}, "4".zfill(20)),
        (None, 0, {}, "0".zfill(20)),
        (None, None, {"SLURM_NODEID": "3"}, "3".zfill(20)),
    ],
)
def test_nodes_are_sorted_by_what_the_user_names_then_by_the_scheduler(
    given: str | None, node_rank: int | None, environ: dict[str, str], expected: str
) -> None:
    assert order_of(given, node_rank, environ) == expected


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (("--node-rank", "4", "train.py"), {}, 4),
        (("--node_rank=4", "train.py"), {}, 4),
        (("train.py",), {"PET_NODE_RANK": "4"}, 4),
        (("train.py",), {}, None),
        (("train.py", "--node-rank", "4"), {}, None),
    ],
)
def test_the_node_rank_is_the_one_that_the_user_has_given(
    monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], environ: dict[str, str], expected: int | None
) -> None:
    """By default it is 0 on every node, which says nothing, and what follows the script is the script's."""
    monkeypatch.delenv("PET_NODE_RANK", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    arguments = torchrun.get_args_parser().parse_args(list(argv))
    assert given_node_rank(arguments, argv, environ) == expected


def test_numbers_are_sorted_by_their_value() -> None:
    keys = [order_of(f"node{number}", None, {}) for number in (2, 10, 1)]
    assert sorted(keys) == [keys[2], keys[0], keys[1]]


def test_a_secret_comes_from_a_file_the_environment_or_the_name_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"  0123456789abcdef\n")
    named = {"FT_NODE_SECRET": "an environment's secret"}

    assert secret_of(str(file), named, "run") == b"0123456789abcdef"
    assert secret_of(None, named, "run") == b"an environment's secret"
    assert secret_of(None, {}, "run") == secret_of(None, {"FT_NODE_SECRET": ""}, "run")
    assert secret_of(None, {}, "run") != secret_of(None, {}, "another run")


def test_a_secret_that_is_short_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"123456789012345\n")

    with pytest.raises(ConfigError, match=r"--ft-node-secret-file .*short has 15 bytes; a secret needs 16 or more"):
        secret_of(str(tmp_path / "short"), {}, "run")
    with pytest.raises(ConfigError, match="FT_NODE_SECRET has 3 bytes"):
        secret_of(None, {"FT_NODE_SECRET": "abc"}, "run")
    with pytest.raises(ConfigError, match=r"--ft-node-secret-file .*none cannot be read: No such file"):
        secret_of(str(tmp_path / "none"), {}, "run")


TERMS = Policy(least=2, most=3, is_fixed=False, max_restarts=3, lease_ns=5, last_call_ns=30, join_ns=600)
OTHER_TERMS: list[dict[str, Any]] = [
    {"lease_ns": 20},  # a longer lease would let ranks live when the others take them for dead
    {"least": 1},
    {"most": 4},
    {"is_fixed": True},
    {"max_restarts": 2},
    {"joins_at_checkpoint": True},
]


@pytest.mark.parametrize("other", OTHER_TERMS, ids=str)
def test_nodes_with_other_terms_have_another_secret(other: dict[str, Any]) -> None:
    secret = b"0123456789abcdef"
    assert with_terms(secret, TERMS) == with_terms(secret, TERMS._replace(last_call_ns=1, join_ns=2))
    assert len({secret, with_terms(secret, TERMS), with_terms(secret, TERMS._replace(**other))}) == 3
    assert with_terms(secret, TERMS) != with_terms(b"another secret 16", TERMS)

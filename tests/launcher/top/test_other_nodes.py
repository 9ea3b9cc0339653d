"""The metrics of other nodes become rows; a node that does not answer is one line."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.live.rates import Rate
from launcher.top import other_nodes
from launcher.top.openmetrics import Sample, samples
from launcher.top.other_nodes import OtherNodes, rows_of
from launcher.top.rows import Row
from resilience_core.system.clock import NS_PER_SECOND

TEXT = """# HELP ft_iteration The iteration that the rank is in.
# TYPE ft_iteration gauge
ft_iteration{run="r",node="far",rank="8",local_rank="0"} 41.0
ft_iteration{run="r",node="far",rank="9",local_rank="1"} 40.0
ft_heartbeat_age_seconds{run="r",node="far",rank="8",local_rank="0"} 2.0
ft_heartbeat_age_seconds{run="r",node="far",rank="9",local_rank="1"} 30.0
ft_slack_seconds{run="r",node="far",rank="8",local_rank="0"} 8.0
ft_slack_seconds{run="r",node="far",rank="9",local_rank="1"} -1.5
ft_section_open_seconds{run="r",node="far",rank="8",local_rank="0",section="forward"} 2.0
ft_section_open_seconds{run="r",node="far",rank="8",local_rank="0",section="step"} 3.0
ft_steps_total{run="r",node="far",rank="8",local_rank="0"} 41.0
ft_resident_memory_bytes{run="r",node="far",rank="8",local_rank="0"} 1.5e+09
ft_generation{run="r",node="far"} 2.0
ft_restarts_total{run="r",node="far",cause="hang"} 1.0
ft_restarts_total{run="r",node="far",cause="failure"} 1.0
# EOF
"""


def test_samples_of_both_formats() -> None:
    text = 'a 1\nb_total{x="a\\"b\\\\c\\nd", y="é}"} 2.5 1700000000\n# HELP a b\n\nc{} +Inf\nd NaN\n'
    text += 'broken{x=1} 3\ne{a="b" 1\n'
    text += 'f{x="1",} 4 # {trace="x"} 3\n'
    assert list(samples(text)) == [
        Sample("a", {}, 1.0),
        Sample("b_total", {"x": 'a"b\\c\nd', "y": "é}"}, 2.5),
        Sample("f", {"x": "1"}, 4.0),
    ]


@given(st.text())
def test_whatever_a_node_answers_is_no_exception(text: str) -> None:
    list(rows_of(samples(text), {}, 1))


@given(st.lists(st.sampled_from(TEXT.split("\n")), max_size=8), st.text(max_size=20))
def test_any_part_of_an_answer_is_no_exception(lines: list[str], rest: str) -> None:
    list(rows_of(samples("\n".join([*lines, rest])), {}, 1))


def test_rows() -> None:
    rates: dict[str, Rate] = {}
    rows_of(samples(TEXT.replace("} 41.0", "} 11.0")), rates, 0)
    early, _ = rows_of(samples(TEXT.replace("} 41.0", "} 31.0")), rates, 1 * NS_PER_SECOND)
    assert early.steps_per_second is None  # one change was seen, and not since when the rank was in that iteration
    first, second = rows_of(samples(TEXT), rates, 6 * NS_PER_SECOND)
    assert first == Row(
        rank=8, local_rank=0, node="far", generation=2, activity="step > forward", remark=None, iteration=41, age=2.0,
        left=8.0, used=pytest.approx(0.2), steps_per_second=pytest.approx(2.0), restarts=2, caused=None,
        memory_bytes=1_500_000_000,
    )  # fmt: skip
    assert (second.rank, second.activity, second.left, second.is_late) == (9, "out of section", -1.5, True)
    assert second.used > 1


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve one answer; its URL."""
    servers = []

    def serve(answer: str, status: int = 200) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/metrics" else 404)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def looked(*urls: str) -> Any:
    others = OtherNodes(urls, 0.05)
    others.start()
    others.wait_for_first()
    found = others.look()
    others.stop()
    return found


def test_nodes_are_asked_by_url_or_by_address(serve: Callable[..., str]) -> None:
    address = serve(TEXT)
    for url in (address, f"http://{address}", f"http://{address}/metrics"):
        (found,) = looked(url)
        assert found.problem is None
        assert [row.rank for row in found.rows] == [8, 9]


def test_a_node_that_is_named_twice_is_shown_once(serve: Callable[..., str]) -> None:
    address, other = serve(TEXT), serve(TEXT)
    port = address.rpartition(":")[2]
    found = looked(address, f"HTTP://{address}/", f"http://{address}/metrics", address, other, f"LocalHost:{port}/x")
    assert [node.url for node in found] == [
        f"http://{address}/metrics",
        f"http://{other}/metrics",
        f"http://localhost:{port}/x",
    ]


@pytest.mark.parametrize(
    ("answer", "status", "problem"),
    [("", 500, "it answers with HTTP status 500"), ("<html>", 200, "it answers with something else than metrics")],
)
def test_what_is_no_answer_is_said(serve: Callable[..., str], answer: str, status: int, problem: str) -> None:
    (found,) = looked(serve(answer, status))
    assert found.problem.startswith(problem)
    assert found.rows == ()


def test_a_silent_node_and_one_that_refuses_delay_nobody(
    serve: Callable[..., str], unused_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_nodes, "LONGEST_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = (f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{unused_port()}", serve(TEXT))
        others = OtherNodes(urls, 0.05)
        others.start()
        others.wait_for_first()
        end = time.monotonic() + 60
        while any("no answer yet" in (node.problem or "") for node in others.look()):
            assert time.monotonic() < end
            time.sleep(0.01)
        slow, closed, good = others.look()
        others.stop()
    assert "timed out, silent for" in (slow.problem or "")
    assert "Connection refused, silent for" in (closed.problem or "")
    assert good.problem is None


def test_rows_of_a_node_that_has_fallen_silent_go(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    others = OtherNodes([serve(TEXT)], 0.05)
    others.start()
    others.wait_for_first()
    others.stop()
    assert others.look()[0].rows
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(other_nodes.time, "monotonic_ns", lambda: now_ns + 60 * NS_PER_SECOND)
    (found,) = others.look()
    assert found.rows == ()
    assert "it does not answer, silent for 60 s" in (found.problem or "")


def test_the_names_are_those_that_nodes_serve() -> None:
    families = pytest.importorskip("launcher.metrics.families")
    served = {name for family in families.FAMILIES for name in families.sample_names(family)}
    assert set(other_nodes.NAMES) <= served
    labels = {family.name: family.labels for family in families.FAMILIES}
    assert "section" in labels["ft_section_open_seconds"]
    assert {"rank", "local_rank"} <= set(labels["ft_iteration"])

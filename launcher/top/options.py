"""The command line of ft_top."""

from __future__ import annotations

import argparse
import math
from urllib.parse import urlsplit

from launcher.top.other_nodes import whole
from resilience_core import __version__

__all__ = ["make_parser"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="ft_top",
        description="Show what the ranks of a run do now, those first that are late. It reads only.",
        epilog="Keys: q quits, s sorts by rank or by lateness. Without a terminal one snapshot is printed.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run",
        nargs="?",
        type=_name,
        metavar="LOG_DIR|RUN",
        help="a run's log folder, the folder of log folders, a run's id, or the id of a run folder "
        "(default: the newest run under ./ft_logs that goes on)",
    )
    parser.add_argument("--once", action="store_true", help="print one snapshot as text")
    parser.add_argument("--json", action="store_true", help="print one snapshot as JSON")
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="between two looks (default 1)"
    )
    parser.add_argument(
        "--metrics",
        type=_urls,
        default=[],
        metavar="URL[,URL...]",
        help="also show the ranks of other nodes, from their metrics (ft_launcher --ft-metrics-port)",
    )
    parser.add_argument("--version", action="version", version=f"ft_top {__version__}")
    return parser


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty name leads to no run; leave it out for the newest one")
    return text


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not math.isfinite(seconds) or not 0.05 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.05 and 86400 seconds")
    return seconds


def _urls(text: str) -> list[str]:
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise argparse.ArgumentTypeError(f"{text!r} names no node; give addresses, such as node1:9400,node2:9400")
    for url in urls:
        if (why := _why_no_url(url)) is not None:
            raise argparse.ArgumentTypeError(f"{url!r} {why}, such as http://node1:9400/metrics")
    return urls


def _why_no_url(url: str) -> str | None:
    scheme, found, _ = url.partition("://")
    if found and scheme.lower() not in ("http", "https"):
        return "is no URL of http or https"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "has characters that no URL has; give one"
    try:
        parts = urlsplit(whole(url))
        host, port = parts.hostname, parts.port
    except ValueError:
        return "has no port from 1 to 65535, or no valid host; give a URL of http or https"
    if not host:
        return "names no host; give a URL of http or https"
    if port == 0 or parts.netloc.endswith(":"):
        return "has no port from 1 to 65535; give a URL of http or https"
    return None

"""POST a document to a URL, by the standard library. Made in a process of its own, which is killed at the bound.

A redirect is not followed, whatever it leads to: a POST that is redirected becomes a GET with most servers, and the
document may hold what must not leave TLS. The proxies of the environment (``https_proxy``, ``no_proxy``) are used.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Any

__all__ = ["opener", "post"]

_AGENT = "torch-resilience"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **known: Any) -> None:
        """Follow none: the answer then counts as an error."""


def opener() -> urllib.request.OpenerDirector:
    """Return what speaks HTTP and HTTPS alone."""
    made = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _NoRedirects(),
    ]
    if hasattr(urllib.request, "HTTPSHandler"):  # not in a Python that was built without OpenSSL
        handlers.append(urllib.request.HTTPSHandler())
    handlers.append(urllib.request.UnknownHandler())
    for handler in handlers:
        made.add_handler(handler)
    return made


def post(url: str, document: bytes, event: str, timeout_seconds: float) -> str | None:
    """Send a document.

    Args:
        url: Where, ``http://`` or ``https://``.
        document: JSON.
        event: Its name, for the header ``X-FT-Event``.
        timeout_seconds: For each wait; the caller bounds the whole.

    Returns:
        What went wrong, in one line; None where the server has answered with 200 to 299.
    """
    headers = {"Content-Type": "application/json", "User-Agent": _AGENT, "X-FT-Event": event}
    request = urllib.request.Request(url, data=document, headers=headers, method="POST")
    try:
        with opener().open(request, timeout=timeout_seconds):
            return None
    except urllib.error.HTTPError as error:
        with error:
            if 300 <= error.code < 400:
                where = error.headers.get("Location") or "nowhere"
                return f"the server redirects ({error.code}) to {where}, which is not followed; give that URL"
            return f"the server answers {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return f"no answer: {error.reason}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no answer: {type(error).__name__}: {error}"

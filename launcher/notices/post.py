"""POST a document to a URL, by the standard library. Made in a process of its own, which is killed at the bound.

A redirect is not followed, whatever it leads to: a POST that is redirected becomes a GET with most servers, and the
document may hold what must not leave TLS. The proxies of the environment (``https_proxy``, ``no_proxy``) are used.
"""

from __future__ import annotations

import http
import http.client
import urllib.error
import urllib.parse
import urllib.request

from resilience_core.config.notice_values import SCHEMES
from resilience_core.redaction import redacted, redacted_url

__all__ = ["opener", "post"]

_AGENT = "torch-resilience"
_SHORT = 3
"""A path of so few characters is no secret, and may be a part of any word."""
_FIX = "give the URL that it redirects to, as 'curl -sI -X POST URL' shows it"


def opener() -> urllib.request.OpenerDirector:
    """Return what speaks HTTP and HTTPS alone. To it a redirect is an error, as nothing of it handles one."""
    made = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
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
        What went wrong, in one line, without the path of a URL; None where the server has answered with 200 to 299.
    """
    headers = {"Content-Type": "application/json", "User-Agent": _AGENT, "X-FT-Event": event}
    request = urllib.request.Request(url, data=document, headers=headers, method="POST")
    try:
        with opener().open(request, timeout=timeout_seconds):
            return None
    except urllib.error.HTTPError as error:
        with error:
            if 300 <= error.code < 400:
                return f"the server redirects ({error.code}) to {_where_to(url, error)}, which is not followed; {_FIX}"
            return f"the server answers {_status(error.code)}"
    except http.client.RemoteDisconnected:
        return "no answer: the server has closed the connection without one"
    except http.client.BadStatusLine:  # its text is what the server has said
        return "no answer: what the server has sent is no HTTP"
    except urllib.error.URLError as error:
        return f"no answer: {_without_path(error.reason, url)}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no answer: {type(error).__name__}: {_without_path(error, url)}"


def _status(code: int) -> str:
    """Return a code with its standard phrase: a server's own words may repeat a part of the path or of the query."""
    try:
        return f"{code} {http.HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


def _without_path(said: object, url: str) -> str:
    """Return what the library has said; it may repeat path and query without the host."""
    text, parts = redacted(str(said)), urllib.parse.urlsplit(url)
    for secret in (urllib.parse.urlunsplit(("", "", parts.path, parts.query, "")), parts.path, parts.query):
        if len(secret) > _SHORT:
            text = text.replace(secret, "***")
    return text


def _where_to(url: str, error: urllib.error.HTTPError) -> str:
    location = error.headers.get("Location")
    if not location:
        return "nowhere"
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(url, location))
        host = parts.hostname
    except ValueError:
        return "something that is no URL"
    if not host or parts.scheme not in SCHEMES:
        return "something that is no URL"
    own = urllib.parse.urlsplit(url)
    if host != own.hostname and host in urllib.parse.unquote(f"{own.path}?{own.query}").lower():
        return "a part of its own path"  # as from //a/b, which some servers send to the host a
    return redacted_url(urllib.parse.urlunsplit(parts))

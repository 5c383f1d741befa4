"""A visitor's browser: opens pages, keeps cookies, fills in forms."""

import json
import re
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

from failure import Failure
from signals import without_signals

#: How long the site may be silent. Ctrl-C waits for a page.
PAGE_TIMEOUT_S = 30

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')
TITLE = re.compile(r"<title>\s*(.*?)\s*</title>", re.DOTALL)


class Browser:
    def __init__(self, url: str) -> None:
        self.url = url
        # No proxy, whatever the environment names: we go no further than loopback.
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))

    def open(self, page: str) -> str:
        """Open a page; return its form's token, or an empty string."""
        found = TOKEN.search(self._request(page, None, "text/html"))
        return found[1] if found else ""

    def look(self, page: str) -> dict[str, Any]:
        """Return what a page shows, as JSON."""
        return _read(page, self._request(page, None, "application/json"))

    def submit(self, page: str, action: str = "", **fields: object) -> dict[str, Any]:
        """Open a page, fill in its form and send it; return the page that follows."""
        return self.send(action or page, self.open(page), **fields)

    def send(self, action: str, token: str = "", **fields: object) -> dict[str, Any]:
        """Send a form that is open already."""
        data = urlencode({"csrfmiddlewaretoken": token, **fields}).encode()
        return _read(action, self._request(action, data, "application/json"))

    def _request(self, path: str, data: bytes | None, accept: str) -> str:
        request = Request(self.url + path, data, {"Accept": accept})
        try:
            with (
                without_signals(),
                self._opener.open(request, timeout=PAGE_TIMEOUT_S) as answer,
            ):
                text: str = answer.read().decode()
                return text
        except HTTPError as error:
            with without_signals(), error:
                text = error.read().decode(errors="replace")
            title = TITLE.search(text)
            why = title[1] if title else text[:500]
            raise Failure(f"{path} answers {error.code}: {why}") from error


def _read(path: str, text: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise Failure(f"{path} answers no JSON, but: {text[:2000]}") from error
    return data

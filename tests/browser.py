"""A headless browser for tests of pages: Chromium from the variable CHROMIUM or from PATH."""

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


def chromium() -> str:
    """The browser; skips the test where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: set CHROMIUM, or install one of {', '.join(NAMES)}")
    return found


def browse(page: Path, profile: Path, *flags: str, fragment: str = "") -> str:
    """What the browser prints for a page of this machine."""
    address = f"{page.resolve().as_uri()}{fragment}"
    command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


class Elements(HTMLParser):
    """Every element of a page as (tag, attributes), in order, and the text of each tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open, data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def addresses(text: str) -> list[str]:
    """What a page would fetch from elsewhere; the name of SVG is an address that is not fetched."""
    found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<)]*", text)
    return [address for address in found if address != "http://www.w3.org/2000/svg"]

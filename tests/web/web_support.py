"""A browser for tests. Every page that a test opens must keep the page's promises: no error in the console, no violation
of its Content-Security-Policy, no request to another host."""

import os
import pathlib
import shutil
import sys

import pytest
from playwright.sync_api import sync_playwright

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "api"), str(TESTS / "e2e")]

WIDE, NARROW = (1280, 900), (375, 800)


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium")
    assert program, "these tests need Debian's package chromium, which `make test-slow` installs"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield started
        started.close()


def watch(page, origin, problems):
    """Record what no page may do. The browser itself logs refused requests, which a page shows to its reader."""
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda said: said.type in ("error", "warning") and not said.text.startswith("Failed to load resource")
            and problems.append(f"console: {said.text}"))
    page.on("request", lambda request: request.url.startswith((f"{origin}/", f"blob:{origin}/", "data:")) or problems.append(f"request: {request.url}"))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))


@pytest.fixture
def open_page(browser):
    """open_page(url, size=…, dark=…, context=…): a page at that address. context: of another page, as a second tab."""
    contexts, problems = [], []

    def begin(url, size=WIDE, dark=False, context=None):
        if context is None:
            context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", reduced_motion="reduce", locale="en-GB")
            context.set_default_timeout(60000)
            contexts.append(context)
        page = context.new_page()
        watch(page, "/".join(url.split("/")[:3]), problems)
        page.goto(url)
        return page

    yield begin
    for context in contexts:
        context.close()
    assert problems == []


def open_answer(open_page, front, answer, **more):
    """Open an answer as a browser would: with its headers, at an address of its service."""
    page = open_page(f"http://127.0.0.1:{front.port}/healthz", **more)
    url = f"http://127.0.0.1:{front.port}/saved"
    page.route(url, lambda route: route.fulfill(status=answer.status, headers=dict(answer.headers), body=answer.body))
    page.goto(url)
    return page


def beside(page):
    """Elements that are wider than the window, if the page can be scrolled sideways."""
    return page.evaluate("""() => document.scrollingElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('main *')]
        .filter(node => node.getBoundingClientRect().right > innerWidth + 1).slice(0, 8).map(node => `${node.tagName} ${node.className} ${node.textContent.slice(0, 40)}`)""")


def tokens(page, strip=0):
    """The tokens of a strip as (text, signed share of the scale)."""
    return page.locator(".strip").nth(strip).evaluate("""node => [...node.querySelectorAll('[role=option]')].map(box => [box.textContent,
        Number(box.style.getPropertyValue('--w') || 0) * (box.classList.contains('minus') ? -1 : box.classList.contains('plus') ? 1 : 0)])""")


def table(page, caption):
    """The rows of the table with this caption, its headings left out, as texts of cells."""
    return page.locator("table", has=page.locator("caption", has_text=caption)).evaluate("node => [...node.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))")


def number(text):
    return float(text.replace("\u2212", "-").removesuffix(" %"))


def points(page, plot=0):
    """The points of a plot's first line, in pixels of the picture."""
    return [tuple(map(float, point.split())) for point in page.locator(".plot").nth(plot).locator("path").first.get_attribute("d").removeprefix("M").split("L")]


def flush(page):
    """Wait until the page has handled the answers that it has received."""
    page.evaluate("fetch('healthz').then(answer => answer.text())")


def wait_until(page, condition):
    """Wait for a condition outside of the page, while the page continues."""
    while not condition():
        page.wait_for_timeout(20)

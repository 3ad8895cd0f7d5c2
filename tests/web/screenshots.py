#!/usr/bin/env python3
"""Take the pictures of the page for the documentation: screenshots.py URL FOLDER. The service at URL has trained a model of
a play, the newest of its jobs. pngquant reduces the colours."""

import pathlib
import subprocess
import sys

from playwright.sync_api import sync_playwright

COLOURS = "32"


def turn(page, prompt, seed):
    page.locator("#play-seed").evaluate("(node, seed) => { node.value = seed; }", seed)
    page.locator("textarea").fill(prompt)
    page.locator("textarea").press("Control+Enter")
    page.wait_for_function("() => / tokens$/.test(document.querySelector('.note[role=status]').textContent)")


def show_training(page, url):
    page.locator(".rows .wide a").first.click()
    page.get_by_role("heading", name="What it writes").wait_for()
    page.wait_for_load_state("networkidle")


def show_playground(page, url):
    page.locator("#play-temperature").evaluate("node => { node.value = 0.7; }")
    turn(page, "ROMEO:\n", 5)
    page.locator(".strip [role=option]").nth(70).focus()
    page.get_by_role("button", name="Fork before it").click()
    page.get_by_text("A fork of").wait_for()
    turn(page, "", 6)
    page.locator(".branch").nth(1).locator("[role=option]").nth(115).click()
    page.get_by_role("heading", name="Why “").wait_for()


def show_comparison(page, url):
    page.locator("#input").fill("KING RICHARD III:\nA horse! a horse! my kingdom for a hor")
    page.locator("summary", has_text="Compare").click()
    page.locator("#second_token").fill(" ")
    page.get_by_role("button", name="Explain", exact=True).click()
    page.locator(".compared .column").nth(54).hover()
    page.evaluate("scrollTo(0, document.querySelector('[role=region]').offsetTop - 60)")


def main(url, folder):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, view, show, height in (("page", "play", show_playground, 664), ("page-training", "jobs", show_training, 735), ("page-comparison", "explain", show_comparison, 660)):
            page, file = browser.new_page(viewport={"width": 1200, "height": height}, device_scale_factor=2), pathlib.Path(folder, f"{name}.png")
            page.goto(f"{url}/#/{view}")
            page.locator("h1").wait_for()
            show(page, url)
            page.screenshot(path=file)
            subprocess.run(["pngquant", "--force", "--strip", "--speed", "1", "--nofs", "--output", file, COLOURS, file], check=True)


main(*sys.argv[1:])

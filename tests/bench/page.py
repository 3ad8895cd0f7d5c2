#!/usr/bin/env python3
"""The page in a browser: what its first load costs, and which frames are late while it shows much.

    build/web-venv/bin/python tests/bench/page.py PROGRAMS [--runs 3] [--loads 10] [--tokens 10000] [--sessions 5000]

PROGRAMS: the folder of additived and additive-httpd. The browser is Debian's chromium. The model is a small additive 2 that
reads bytes and has one thread, so that tokens come fast. Prints a line of JSON for the first loads and one for each
run:

first_load   the playground with an empty cache, medians of LOADS: first paint in ms, bytes received with their headers,
             requests; and the hosts that were asked
phases       for each phase: long_tasks, tasks of the main thread of at least 50 ms, and busy_tasks, those of
             50 ms of processor time; late_frames, pairs of frames more than 50 ms apart; the longest of each; layouts
causes       the tasks with the most processor time: ms of the steps that are in it
load_average at the beginning and at the end of the run

A trace of the browser has the processor time of each task, which other programs on the machine hardly change.

Phases: `idle` does nothing, so its late frames are those of the machine. `generate` is a turn of TOKENS tokens, `point` moves over some of
them while each shows what it read, `recolour` changes all their colours, `reopen` opens the session again. `list` loads SESSIONS
sessions, `scroll` shows them all, a window in each frame, `search` finds one of them."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import urllib.parse

from contest import Failure
from http_load import TEXT, Service, train, upload
from live_sessions import CONNECTIONS, open_sessions
from playwright.sync_api import sync_playwright

CONFIG = {"hidden_size": 32, "n_heads": 4, "n_layer": 1, "intermediate_size": 64}
LATE, CAUSES, CAUSE_MS = 50, 12, 20
OBSERVE = """() => {
    window.observed = {tasks: [], frames: []};
    new PerformanceObserver(list => observed.tasks.push(...list.getEntries().map(entry => entry.duration))).observe({type: 'longtask'});
    let last = 0;
    requestAnimationFrame(function frame(now) {
        if (last) observed.frames.push(now - last);
        last = now;
        requestAnimationFrame(frame);
    });
}"""
SCROLL = """() => new Promise(done => requestAnimationFrame(function step() {
    const before = scrollY;
    scrollBy(0, innerHeight);
    if (scrollY === before) done();
    else requestAnimationFrame(step);
}))"""
TRACED, STEP_MS = ["devtools.timeline", "disabled-by-default-devtools.timeline", "v8"], 3


def tasks_of(trace):
    """Tasks of the page's main thread, each as (ms of processor time, {name of a step: its ms})."""
    (pid,) = (event["args"]["data"]["frames"][0]["processId"] for event in trace if event["name"] == "TracingStartedInBrowser")
    (thread,) = (event["tid"] for event in trace if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain" and event["pid"] == pid)
    events = sorted((event for event in trace if event["pid"] == pid and event["tid"] == thread and "tdur" in event), key=lambda event: (event["ts"], -event["dur"]))
    tasks, end = [], 0
    for event in events:
        if event["ts"] >= end:
            tasks.append((event["tdur"] / 1000, {}))
            end = event["ts"] + event["dur"]
        elif event["tdur"] >= STEP_MS * 1000:
            steps = tasks[-1][1]
            steps[event["name"]] = round(steps.get(event["name"], 0) + event["tdur"] / 1000)
    return tasks


class Page:
    """A page of a context of its own, whose cache is empty."""

    def __init__(self, browser):
        self.browser = browser
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
        self.page = self.context.new_page()
        self.page.set_default_timeout(600000)
        self.tools = self.context.new_cdp_session(self.page)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def counters(self):
        return {row["name"]: row["value"] for row in self.tools.send("Performance.getMetrics")["metrics"]}

    def measure(self, phases, causes, name, action):
        """Run the action, and add what was observed meanwhile to phases[name]."""
        self.page.evaluate("observed.tasks = []; observed.frames = []")
        before = self.counters()
        self.browser.start_tracing(page=self.page, categories=TRACED)
        action(self.page)
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")
        tasks = tasks_of(json.loads(self.browser.stop_tracing())["traceEvents"])
        after, seen = self.counters(), self.page.evaluate("observed")
        row = {"frames": len(seen["frames"]), "late_frames": sum(gap > LATE for gap in seen["frames"]), "longest_gap_ms": round(max(seen["frames"], default=0)),
               "long_tasks": len(seen["tasks"]), "longest_task_ms": round(max(seen["tasks"], default=0)),
               "busy_tasks": sum(ms >= LATE for ms, _ in tasks), "busiest_task_ms": round(max(ms for ms, _ in tasks)), "busy_ms": round(sum(ms for ms, _ in tasks)),
               "layouts": round(after["LayoutCount"] - before["LayoutCount"])}
        phases[name] = row
        causes += [{"phase": name, "ms": round(ms), **steps} for ms, steps in tasks if ms >= CAUSE_MS]


def first_load(browser, url):
    hosts, sizes = set(), []
    with Page(browser) as opened:
        opened.tools.send("Network.enable")
        opened.tools.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        opened.page.on("request", lambda request: hosts.add(urllib.parse.urlsplit(request.url).netloc))
        opened.page.goto(url, wait_until="networkidle")
        opened.page.locator("textarea").wait_for()
        paints = dict(opened.page.evaluate("performance.getEntriesByType('paint').map(entry => [entry.name, entry.startTime])"))
    return {"first_paint_ms": paints["first-paint"], "first_contentful_paint_ms": paints["first-contentful-paint"], "bytes": sum(sizes), "requests": len(sizes)}, hosts


def wait_for_text(page, tokens):
    """Until the turn is over and each of its tokens has an element."""
    page.wait_for_function("n => /^[0-9]+ tokens$/.test(document.querySelector('.note[role=status]').textContent) && document.querySelectorAll('.strip [role=option]').length > n",
                           arg=tokens, polling=200)


def generate(page, tokens):
    page.locator("textarea").fill("go on")
    page.locator("textarea").press("Control+Enter")
    wait_for_text(page, tokens)


def point(page):
    page.get_by_label("Colours").select_option("weights")
    boxes = page.locator(".strip [role=option]")
    for i in range(100, 200, 10):
        boxes.nth(i).hover()


def recolour(page):
    for name in ("none", "probability"):
        page.get_by_label("Colours").select_option(name)
        page.wait_for_timeout(300)


def list_sessions(page, sessions):
    page.evaluate("location.hash = '#/sessions'")
    page.get_by_text(f"{sessions:,} in all").wait_for()


def search(page, name):
    page.get_by_role("searchbox").fill(name)
    page.get_by_role("link", name=name, exact=True).wait_for()


def run(browser, url, model, names, options, phases, causes):
    with Page(browser) as opened:
        page = opened.page
        page.goto(f"{url}/#/play?model={urllib.parse.quote(model)}")
        page.locator("textarea").wait_for()
        page.locator("summary", has_text="Sampling").click()
        page.locator("#play-max_tokens").fill(str(options.tokens))
        page.locator("#play-temperature").fill("0")
        page.evaluate(f"({OBSERVE})()")
        opened.tools.send("Performance.enable")
        measure = lambda name, action: opened.measure(phases, causes, name, action)
        measure("idle", lambda page: page.wait_for_timeout(3000))
        measure("generate", lambda page: generate(page, options.tokens))
        measure("point", point)
        measure("recolour", recolour)
        session = page.locator(".branch-head a").text_content()
        page.evaluate("location.hash = '#/files'")
        page.get_by_role("heading", name="Files").wait_for()

        def reopen(page):
            page.evaluate("session => { location.hash = `#/play?session=${session}`; }", session)
            page.wait_for_function("n => document.querySelectorAll('.strip [role=option]').length > n", arg=options.tokens, polling=200)

        measure("reopen", reopen)
        page.evaluate("session => fetch(`v1/sessions/${session}`, {method: 'DELETE'})", session)
        measure("list", lambda page: list_sessions(page, options.sessions))
        measure("scroll", lambda page: page.evaluate(SCROLL))
        measure("search", lambda page: search(page, names[options.sessions // 2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    for name, default in {"runs": 3, "loads": 10, "tokens": 10000, "sessions": 5000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, program = parser.parse_args(), shutil.which("chromium")
    if not program:
        raise Failure("there is no chromium")
    loads, hosts = [], set()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu", "--threads", 1, "--max-sessions", options.sessions + 8])
        try:
            model = train(service, "additive2", upload(service, TEXT * 200), {"config": CONFIG, "sequence_length": 64, "batch_size": 4, "max_steps": 40})
            url, names = f"http://{service.address}", [None] * options.sessions
            openers = [threading.Thread(target=open_sessions, args=(service, model, names, i)) for i in range(CONNECTIONS)]
            for opener in openers:
                opener.start()
            for opener in openers:
                opener.join()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else [])
                for _ in range(options.loads):
                    load, asked = first_load(browser, f"{url}/#/play")
                    loads.append(load)
                    hosts |= asked
                print(json.dumps({"first_load": {key: round(statistics.median(load[key] for load in loads)) for key in loads[0]}, "other_hosts": sorted(hosts - {service.address})}), flush=True)
                for _ in range(options.runs):
                    phases, causes, began = {}, [], os.getloadavg()
                    run(browser, url, model, names, options, phases, causes)
                    causes.sort(key=lambda cause: -cause["ms"])
                    print(json.dumps({"load_average": [began, os.getloadavg()], "phases": phases, "causes": causes[:CAUSES]}), flush=True)
                browser.close()
        finally:
            service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

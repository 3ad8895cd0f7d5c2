"""Explanations whose texts are hostile, and what the page of an answer must be."""

import html.parser
import json
import math
import re

HOSTILE = ["<script>alert(1)</script>", "</script>", "&amp;", '"', "'", "\n", "", "<!--", "]]>", "☃", "\u2028", "a b"]
TOKENS = [{"id": i, "text": t, "offset": i} for i, t in enumerate(HOSTILE)]
N = len(TOKENS)


def softmax(scores):
    total = sum(map(math.exp, scores))
    return [math.exp(s) / total for s in scores]


SCORES = [0.3 * i for i in range(N)]
ALPHA = softmax(SCORES[-4:])
ONE = {"object": "explanation", "model": "m<1>", "tokens": TOKENS, "position": N - 1, "aggregate": None,
       "weights": [{"layer": 0, "head": h, "round": r, "window": [N - 4, N - 1], "alpha": ALPHA} for h in range(2) for r in ("query", "key")]}
MEAN = {**ONE, "aggregate": {"method": "mean", "alpha": softmax(SCORES)}}
ALL = {"object": "explanation", "model": "m", "tokens": TOKENS, "position": "all", "aggregate": None,
       "weights": [{"layer": 0, "head": 0, "round": "query", "window_size": 3, "score": SCORES,
                    "log_normalizer": [math.log(sum(math.exp(s) for s in SCORES[max(0, i - 2) : i + 1])) for i in range(N)]}]}

PARTS = [0.5, -1.5, 0, 0.25, -0.125, 2, 0, -0.75, 0.0625, 1e-7, 0.5, 8]
SIGNED = {**MEAN, "contributions": {
    "target": {"kind": "contrast", "automatic": True, "token": {"id": 7, "text": "</script>"}, "other": None, "logit": 3.5, "log_probability": math.log(0.25)},
    "share": 0.5, "score": 9.5, "tokens": PARTS, "positions": [0.01] * N, "biases": [-0.01] * N,
    "sums": {"tokens": sum(PARTS[:-1]), "reader": 8.0, "positions": 0.12, "biases": 0.4425, "rounding": 0.0}}}


SOURCE = [{"id": i, "text": t, "offset": i} for i, t in enumerate(["<b>", "é\n", "y"])]
SOURCE_PARTS, SOURCE_ALPHA = [4, -1, 0], [0.625, 0, 0.375]
SOURCED = {**SIGNED, "source": {"tokens": SOURCE, "weights": [], "aggregate": {"method": "mean", "alpha": SOURCE_ALPHA}},
           "contributions": {**SIGNED["contributions"], "source": {"tokens": SOURCE_PARTS}, "sums": {**SIGNED["contributions"]["sums"], "source": 3.0}}}
WEIGHED = {**SOURCED, "contributions": None}

OTHER = [*TOKENS[:2], {"id": 99, "text": "<new>", "offset": 2}, *TOKENS[3:]]
SECOND = {**SIGNED, "model": "n&2", "tokens": OTHER, "contributions": {**SIGNED["contributions"], "tokens": [2 * x for x in PARTS], "score": 19.0}}


METRICS = [*({"metric": name, "fraction": f, "better": better} for name, better in (("comprehensiveness", "higher"), ("sufficiency", "lower")) for f in (0.05, 0.2)),
           {"metric": "deletion_auc", "better": "lower"}, {"metric": "kendall_tau", "better": "higher"}, {"metric": "far_drop", "better": "higher"}]
METHODS = ["contributions", "alpha", "random", "recency"]


def estimate(mean):
    return {"mean": mean, "interval": [mean - 0.25, mean + 0.25]}


def numbers(i, k):
    """Contributions are better than recency by every metric, alpha as good, random worse."""
    side = -1 if METRICS[k]["better"] == "lower" else 1
    mean = side * (1.5, 0.5, -0.5, 0.5)[i]
    baseline = i >= 2
    return {**estimate(mean), "count": 12, "reverse": None if baseline else estimate(-mean), "less_random": None if i == 2 else estimate(mean + side * 0.5),
            "less_recency": None if i == 3 else estimate(mean - side * 0.5)}


EVALUATION = {
    "object": "explain.evaluation", "model": "m<1>", "texts": 3, "positions": 12, "resampled": "texts",
    "settings": {"methods": METHODS[:2], "seed": 7, "confidence": 0.95, "replacement": "</script>"}, "metrics": METRICS,
    "methods": [{"method": name, "baseline": i >= 2, "numbers": [numbers(i, k) for k in range(len(METRICS))],
                 "curve": {"fractions": [0, 0.5, 1], "deletion": [-0.1, -1 - i, -4], "insertion": [-4, -1.5, -0.1]}} for i, name in enumerate(METHODS)],
    "log_probability": -0.1, "empty": -4.0, "seconds": 1.5, "readings": 321, "tokens_read": 12345}
JOB = {"id": "eval-1", "object": "explain.evaluation.job", "created_at": 1, "finished_at": None, "status": "running", "model": "m<1>", "file": "file-1",
       "texts": {"total": 50, "done": 12}, "settings": {"seed": 7}, "error": None, "result": None}


class Page(html.parser.HTMLParser):
    """The elements of a page. Each must end where it should."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.scripts, self.texts = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag != "meta":
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif not self.open or self.open[-1] != "style":
            self.texts += data


def data_of_page(page, policy=None):
    """Check that a saved page is one safe document, and return its data. policy: its Content-Security-Policy."""
    text = page.decode() if isinstance(page, bytes) else page
    assert text.startswith("<!doctype html>") and "{{" not in text
    parsed = Page(text)
    (kind, data), (program, script) = parsed.scripts
    assert kind == {"type": "application/json", "id": "data"} and program["type"] == "module"
    assert "<" not in data and not re.search(r"^(?:import|export) ", script, re.MULTILINE)
    for tag, name, value in parsed.attributes:
        assert name not in ("src", "href", "action", "srcset", "data", "background", "http-equiv") and not name.startswith("on"), (tag, name)
    assert not re.search(r"url\(|@import|https?:", text.replace(data, "").replace("http://www.w3.org/2000/svg", ""))  # a namespace, not an address
    assert parsed.texts.split() == "Explanation The numbers are in this page as JSON; drawing them needs scripts.".split()
    if policy:
        nonce = re.fullmatch(r"default-src 'none'; style-src 'nonce-([0-9a-f]{24})'; script-src 'nonce-\1'", policy)[1]
        assert [(tag, value) for tag, name, value in parsed.attributes if name == "nonce"] == [("style", nonce), ("script", nonce)]
    return json.loads(data)

"""Metrics of faithfulness in numpy, written to be read: how well an order of tokens fits the effect of their removal.

One prediction that reads n + 1 tokens, of which one, the reader, stays: `reader` others are before it, all n unless that is given.
said(S) is the log-probability of the target when the
tokens S (a frozenset of indices among the n) are removed. An order is n numbers, the largest first, of equal ones the earlier token. The
definitions are those of engine/explain/faithfulness.h; random numbers are Philox's, counter-based, so that they are the same here.
"""

import math

import numpy

FAITHFULNESS, BOOTSTRAP = 0x70000000, 0x71000000
MASK = 0xFFFFFFFF


def philox(seed, stream, step, index):
    """Four random words (Salmon and others 2011, Philox4x32-10)."""
    c = [index & MASK, index >> 32, stream, step]
    k = [seed & MASK, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def uniform(seed, draw, text, position, token, word):
    return (philox(seed, FAITHFULNESS + draw, position, text << 32 | token)[word] >> 8) * 2.0**-24


def random_order(seed, text, n, reader=None):
    return numpy.array([uniform(seed, 0, text, n if reader is None else reader, j, 1) for j in range(n)])


def distances(n, reader=None):
    reader = n if reader is None else reader
    return numpy.array([*range(reader, 0, -1), *range(1, n - reader + 1)])


def recency(n, reader=None):
    return n + 1 - distances(n, reader)


def count(fraction, n):
    return min(n, max(1, math.ceil(fraction * n - 1e-9)))


def point(g, grid, n):
    """Return the number of tokens removed at point g of a curve: g n / grid, rounded so that point grid - g has the
    others."""
    return n - point(grid - g, grid, n) if 2 * g > grid else (2 * g * n + grid) // (2 * grid)


def kendall(x, y):
    """tau-b"""
    upper = numpy.triu_indices(len(x), 1)
    a, b = (numpy.sign(v[:, None] - v[None, :])[upper] for v in (numpy.asarray(x, float), numpy.asarray(y, float)))
    pairs = math.sqrt((a != 0).sum() * (b != 0).sum())
    return (a * b).sum() / pairs if pairs else math.nan


def one_order(said, order, drawn, n, reader, fractions, grid, far):
    """Metrics by name of an order, a list of tokens; drawn: for each draw which tokens it takes. And both curves."""
    every, whole = frozenset(range(n)), said(frozenset())
    without = lambda k: said(frozenset(order[:k]))
    only = lambda k: said(every - frozenset(order[:k]))
    found = {}
    for q in fractions:
        found["comprehensiveness", q] = whole - without(count(q, n))
        found["sufficiency", q] = whole - only(count(q, n))
    points = [point(g, grid, n) for g in range(grid + 1)]
    curves = [[along(k) for k in points] for along in (without, only)]
    for name, curve in zip(("deletion_auc", "insertion_auc"), curves):
        found[name, 0] = sum((b - a) * (y + z) / 2 for a, b, y, z in zip(points, points[1:], curve, curve[1:])) / n
    distant = [j for j in order if distances(n, reader)[j] >= far]
    found["far_drop", 0] = whole - said(frozenset(distant[: count(0.05, len(distant))])) if distant else math.nan
    if len(drawn):
        found["soft_comprehensiveness", 0] = whole - numpy.mean([said(frozenset(numpy.flatnonzero(d))) for d in drawn])
        found["soft_sufficiency", 0] = whole - numpy.mean([said(frozenset(numpy.flatnonzero(~d))) for d in drawn])
    return found, curves


def measure(said, orders, fractions, grid, soft, far, seed, text=0, reader=None):
    """[(metrics of the order, metrics of its reverse, curves)] of orders, each an array of n numbers."""
    found = []
    falls = [said(frozenset()) - said(frozenset([j])) for j in range(len(orders[0]))]
    for numbers in orders:
        n = len(numbers)
        place = n if reader is None else reader
        order = numpy.argsort(-numpy.asarray(numbers, float), kind="stable").tolist()
        shares = numpy.abs(numbers) / max(numpy.abs(numbers).max(), 1e-300)
        drawn = [numpy.array([uniform(seed, s, text, place, j, 0) < shares[j] for j in range(n)]) for s in range(soft)]
        forward, curves = one_order(said, order, drawn, n, place, fractions, grid, far)
        backward, _ = one_order(said, order[::-1], [~d for d in drawn], n, place, fractions, grid, far)
        forward["kendall_tau", 0] = kendall(numbers, falls)
        backward["kendall_tau", 0] = -forward["kendall_tau", 0]
        found.append((forward, backward, curves))
    areas = [-x["deletion_auc", 0] for f, b, _ in found for x in (f, b)]
    for forward, backward, _ in found:
        for x in (forward, backward):
            x["normalised_aopc", 0] = (-x["deletion_auc", 0] - min(areas)) / (max(areas) - min(areas))
    return found


def interval(values, groups, seed, samples, confidence):
    """(mean, bounds) of values; NaN is none. Groups, numbered from 0, are drawn as wholes."""
    values, groups = numpy.asarray(values, float), numpy.asarray(groups)
    there, n = numpy.isfinite(values), groups.max() + 1
    sums = numpy.bincount(groups[there], values[there], n)
    counts = numpy.bincount(groups[there], minlength=n)
    means = []
    for s in range(samples):
        words = [w for i in range(0, n, 4) for w in philox(seed, BOOTSTRAP, s, i // 4)][:n]
        drawn = [w * int(n) >> 32 for w in words]
        if counts[drawn].sum():
            means.append(sums[drawn].sum() / counts[drawn].sum())
    return values[there].mean(), numpy.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])

"""Dilated attention (LongNet) and its gradient in numpy, one head of one sequence: every branch an explicit N x N matrix."""

import numpy


def first_row(offset, heads, head, dilation):
    """The row of a segment with which a head begins."""
    if offset == "block":
        return head // -(-heads // dilation)
    return head % dilation if offset == "mod" else 0


def pairs(n, segment, dilation, first, causal):
    """(which query reads which key [N,N], keys of zeros of each query [N])"""
    w, t = min(segment, n), numpy.arange(n)
    row = t % w
    kept = row % dilation == first
    reads = kept[:, None] & kept[None, :] & (t[:, None] // w == t[None, :] // w)
    filled = sum(p % dilation == first for p in range(-(-w // dilation) * dilation))
    missing = numpy.where(kept, filled - reads.sum(1), 0)
    return reads & (t[:, None] >= t[None, :]) if causal else reads, missing


def softmax(x, axis=0):
    """A column without a finite number gives zeros."""
    top = x.max(axis, keepdims=True)
    e = numpy.exp(x - numpy.where(numpy.isfinite(top), top, 0))
    return e / numpy.where(e.sum(axis, keepdims=True) > 0, e.sum(axis, keepdims=True), 1)


class Head:
    """q, k, v [N,h]; branches: (segment, dilation, first row) each; mixture [branches] or None."""

    def __init__(self, q, k, v, branches, causal=False, zero_keys=False, mixture=None):
        self.q, self.k, self.v, self.scale = q, k, v, q.shape[1] ** -0.5
        scores, self.normalizer, self.p = self.scale * q @ k.T, [], []
        for branch in branches:
            reads, missing = pairs(len(q), *branch, causal)
            e = numpy.where(reads, numpy.exp(scores), 0)
            total = e.sum(1) + (missing if zero_keys else 0)
            self.normalizer.append(numpy.log(total, out=numpy.full(len(q), -numpy.inf), where=total > 0))
            self.p.append(e / numpy.where(total > 0, total, 1)[:, None])
        self.mixture = mixture
        self.weight = softmax(numpy.array(self.normalizer)) if mixture is None else \
            numpy.repeat(softmax(mixture)[:, None], len(q), 1)
        self.y = sum(c[:, None] * (p @ v) for c, p in zip(self.weight, self.p, strict=True))

    def gradients(self, dy, detach):
        """dq, dk, dv, and dmixture where there is one; detach: the weights of the branches are constants."""
        dq, dk, dv = (numpy.zeros_like(self.q) for _ in range(3))
        u, own = dy @ self.v.T, []
        for c, p in zip(self.weight, self.p, strict=True):
            along = (dy * (p @ self.v)).sum(1)
            own.append(along.sum())
            ds = c[:, None] * p * (u - (along if detach else (dy * self.y).sum(1))[:, None])
            dq += self.scale * ds @ self.k
            dk += self.scale * ds.T @ self.q
            dv += (c[:, None] * p).T @ dy
        own = numpy.array(own)
        weight = self.weight[:, 0]
        return dq, dk, dv, weight * (own - weight @ own) if self.mixture is not None else None

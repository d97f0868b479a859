"""Mean and covariance of the queries, or keys, of one head, for an input with independent unit components.

q = W x + b has mean b and covariance S = W W'. All that is predicted about a head follows from these d_k x d_k
matrices, so W itself is read once, in blocks, and never held as a whole.

QK-norm divides q by its length: u = q / sqrt(|q|^2/d + eps). For normal x its moments are exact too, by
1/a = integral of e^(-t a) dt and 1/sqrt(a) = integral of e^(-t a) dt/sqrt(pi t), a = |q|^2 + d eps. Under the integral
is again a normal law, of covariance S (1 + 2tS)^-1 and mean m = (1 + 2tS)^-1 b:

    E[q q'/a]    = integral of w(t) (S (1 + 2tS)^-1 + m m') dt
    E[q/sqrt a]  = integral of w(t) m dt / sqrt(pi t)
    w(t)         = det(1 + 2tS)^(-1/2) exp(-t b'm - t d eps)

In ln t the integrands are analytic in a strip of half-width pi and the trapezoidal rule has all digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# ln t, relative to one over the mean square: the integrands fall like sqrt(t) to the left and, at the worst, where all
# of q lies in one direction, like 1/sqrt(t) to the right.
_LN_T = np.arange(-80.0, 90.0, 0.25)


@dataclass(frozen=True, slots=True)
class Law:
    """A mean of shape (d,) and a covariance of shape (d, d)."""

    mean: Floats
    covariance: Floats

    @property
    def mean_square(self) -> float:
        """E|q|^2."""
        return float(np.trace(self.covariance) + self.mean @ self.mean)

    def scaled(self, gain: Any, shift: Any = 0.0) -> Law:
        """The law of gain * q + shift, component by component."""
        gain = np.broadcast_to(gain, self.mean.shape)
        return Law(gain * self.mean + shift, self.covariance * np.outer(gain, gain))

    def centred(self) -> Law:
        """The law of q minus the mean of its own components, as a layer norm begins."""
        d = len(self.mean)
        off = np.eye(d) - 1.0 / d
        return Law(off @ self.mean, off @ self.covariance @ off)

    def normed(self, epsilon: float = 0.0) -> Law:
        """The law of q / sqrt(|q|^2/d + epsilon), for normal q.

        >>> law = Law(np.zeros(4), np.diag([9.0, 9.0, 9.0, 9.0])).normed()
        >>> law.covariance.diagonal().round(12).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        along_axes = self.along_axes()
        return Together.of([along_axes], len(self.mean), epsilon).normed(along_axes)

    def along_axes(self) -> AxisLaw:
        """The same law along the axes of its covariance."""
        spread, axes = np.linalg.eigh(self.covariance)
        return AxisLaw(np.maximum(spread, 0.0), axes, axes.T @ self.mean)


@dataclass(frozen=True, slots=True)
class Together:
    """A norm over the components of several heads together; the heads are normed one after the other.

    The length is that of all heads, and w(t) the product of theirs: exact where queries of different heads do not
    correlate, which the weights of each head do not show. For each head its spectrum is kept, not its matrix. All
    squares are first divided by 2^power, so that no size of q overflows float64.
    """

    length: int
    power: int
    t: Floats
    weight: Floats

    @classmethod
    def of(cls, heads: Iterable[AxisLaw], length: int, epsilon: float = 0.0) -> Together:
        """Pass over the heads once."""
        spectra = [(head.spread, head.along) for head in heads]
        size = float(sum(spread.sum() + along @ along for spread, along in spectra))
        if size == 0.0:
            return cls(length, 0, _LN_T, np.zeros(0))
        power = 2 * (math.frexp(size)[1] // 2)
        t = np.exp(_LN_T) / math.ldexp(size, -power)
        exponent = -t * length * np.ldexp(epsilon, -power)
        for spread, along in spectra:
            head = AxisLaw(spread, None, along).reduced(power)
            shrunk, mean = head.tilted(t)
            # ln det(1 + 2tS)^(-1/2) - t b'm
            exponent = exponent + (0.5 * np.log(shrunk).sum(axis=1) - t * (mean @ head.along))
        # dt = t d(ln t)
        return cls(length, power, t, np.exp(exponent) * t * (_LN_T[1] - _LN_T[0]))

    def normed(self, head: AxisLaw) -> Law:
        """The law of one of the heads after the norm."""
        if not len(self.weight):  # nothing but zeros
            return Law(head.along, np.diag(head.spread))
        t, weight, reduced = self.t, self.weight, head.reduced(self.power)
        shrunk, mean = reduced.tilted(t)
        centre = np.sqrt(self.length) * (reduced.axes @ ((weight / np.sqrt(np.pi * t)) @ mean))
        squares = np.diag(weight @ (reduced.spread * shrunk)) + (mean * weight[:, None]).T @ mean
        second = self.length * (reduced.axes @ squares @ reduced.axes.T)
        return Law(centre, second - np.outer(centre, centre))

    def slope(self, head: AxisLaw) -> Floats:
        """A in E[u q'] = A E[q q'] for the normed u and q of mean 0: the part of u that is linear in q.

        Under the integral of 1/sqrt(a) is S (1 + 2tS)^-1, so A is the integral of w(t) (1 + 2tS)^-1 / sqrt(pi t).
        """
        if not len(self.weight):
            return np.zeros((len(head.along), len(head.along)))
        shrunk, _ = head.reduced(self.power).tilted(self.t)
        axes = np.sqrt(self.length) * ((self.weight / np.sqrt(np.pi * self.t)) @ shrunk)
        slope: Floats = (head.axes * np.ldexp(axes, -self.power // 2)) @ head.axes.T
        return slope


@dataclass(frozen=True, slots=True)
class AxisLaw:
    """A law along the axes of its covariance."""

    spread: Floats
    axes: Any
    along: Floats

    def reduced(self, power: int) -> AxisLaw:
        """The same for q over 2^(power/2); exact."""
        return AxisLaw(np.ldexp(self.spread, -power), self.axes, np.ldexp(self.along, -power // 2))

    def tilted(self, t: Floats) -> tuple[Floats, Floats]:
        """(1 + 2tS)^-1 and m, by t and axis."""
        shrunk = 1.0 / (1.0 + 2.0 * t[:, None] * self.spread)
        return shrunk, self.along * shrunk


def row_variance(query: Law, key: Law) -> float:
    """E Var(<q, k> | q) = tr(E[q q'] S_k) = tr(S_q S_k) + b_q' S_k b_q.

    The same as `rootdk.theory.row_variance`, here with NumPy alone.

    >>> row_variance(Law(np.zeros(64), np.eye(64)), Law(np.ones(64), np.eye(64)))
    64.0
    """
    second_moment = query.covariance + np.outer(query.mean, query.mean)
    return float(np.sum(second_moment * key.covariance))


def row_variance_bound(query: Law, key: Law) -> float:
    """A bound of the same with q turned by any rotation: |S_q|_F |S_k|_F + |b_q|^2 |S_k|.

    A rotary embedding turns q and k by angles that depend on their distance. That changes tr(S_q R S_k R'), but not the
    norms: by Cauchy-Schwarz this is a bound for every distance.
    """
    norms = float(np.linalg.norm(query.covariance) * np.linalg.norm(key.covariance))
    return norms + float(query.mean @ query.mean) * largest_eigenvalue(key.covariance)


def largest_eigenvalue(matrix: Floats) -> float:
    """The largest eigenvalue of a symmetric matrix that has no negative one."""
    return max(0.0, float(np.linalg.eigvalsh(matrix)[-1]))


def spectral_bound(query: Law, key: Law, query_width: int, key_width: int, *, rotated: bool) -> float:
    """The largest <q, k> over all inputs of length sqrt(m).

    With q = W_q x + b_q and k = W_k y + b_k the product is x' W_q' W_k y and three terms with biases; the largest
    singular value of W_q' W_k is the root of the largest eigenvalue of S_q S_k. With a rotation R between the two this
    fails: W_q' R W_k may be larger than W_q' W_k. R cannot make q or k longer, so |q| |k| holds for every rotation.

    >>> unit = Law(np.zeros(2), np.eye(2))
    >>> spectral_bound(unit, unit, 2, 2, rotated=False), spectral_bound(unit, unit, 2, 2, rotated=True)
    (2.0, 2.0...)
    """
    if rotated:
        return longest(query, query_width) * longest(key, key_width)
    spread, axes = np.linalg.eigh(query.covariance)
    root = axes * np.sqrt(np.maximum(spread, 0.0))
    joint = np.sqrt(query_width * key_width * largest_eigenvalue(root.T @ key.covariance @ root))
    by_query = np.sqrt(query_width) * np.linalg.norm(root.T @ key.mean)  # |W_q' b_k| = |S_q^(1/2) b_k|
    by_key = np.sqrt(key_width * float(query.mean @ key.covariance @ query.mean))
    return float(joint + by_query + by_key + abs(query.mean @ key.mean))


def longest(law: Law, width: int) -> float:
    """The length of the longest q over all inputs of length sqrt(width)."""
    return float(np.sqrt(width * largest_eigenvalue(law.covariance)) + np.linalg.norm(law.mean))


def gain_bound(
    query: tuple[Floats, Floats], key: tuple[Floats, Floats], lengths: tuple[int, int], *, rotated: bool
) -> float:
    """The largest <q, k> after QK-norm with (gain, shift) of each: d max|g_q g_k| where nothing is shifted or rotated.

    A normed vector of `length` components is sqrt(length) long at the most. A rotation mixes the components of two
    gains, so there the largest gain of each counts: max|g_q| max|g_k|.

    >>> gain, none = np.array([1.0, 3.0]), np.zeros(2)
    >>> gain_bound((gain, none), (gain[::-1], none), (2, 2), rotated=False)
    6.0...
    >>> gain_bound((gain, none), (gain[::-1], none), (2, 2), rotated=True)
    18.0...
    """
    (g_q, s_q), (g_k, s_k) = query, key
    n_q, n_k = np.sqrt(lengths)
    if rotated:
        longest = (n * np.max(np.abs(g)) + np.linalg.norm(s) for n, g, s in ((n_q, g_q, s_q), (n_k, g_k, s_k)))
        return float(np.prod(list(longest)))
    shifted = n_q * np.linalg.norm(g_q * s_k) + n_k * np.linalg.norm(g_k * s_q) + abs(s_q @ s_k)
    return float(n_q * n_k * np.max(np.abs(g_q * g_k)) + shifted)

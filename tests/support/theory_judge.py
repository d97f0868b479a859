"""The softmax averages by their textbook formulas in mpmath: other integrands, another rule, 30 digits.

rootdk.theory sums positive integrands with the trapezoidal rule. Here the averages are the differences that a book
has, on Gauss-Legendre panels, with so many digits that the cancellation does no harm:

    phi(t)    = E exp(-t e^(sigma x))
    E ln Z    = integral of (e^-t - phi^n) dt/t
    E sum p^k = n integral of t^(k-1)/(k-1)! E[e^(k sigma x) exp(-t e^(sigma x))] phi^(n-1) dt
    E (sum p^2)^2 likewise with t^3/6, from p^4 and from p_i^2 p_j^2
    E H       = E ln Z - sigma^2 (1 - E sum p^2)
    E tr J    = 1 - E sum p^2
    E |J|^2   = E sum p^2 - 2 E sum p^3 + E (sum p^2)^2
"""

import itertools
from collections.abc import Sequence

from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre

FIELDS = ("log_sum_exp", "entropy", "p_squared", "p_cubed", "jacobian_trace", "jacobian_norm_squared")


def averages(keys: Sequence[float], sigma: float, digits: int = 20, degree: int = 4) -> list[dict[str, mpf]]:
    """One record per number of keys."""
    with mp.workdps(digits + 10):
        spread = mpf(sigma)
        reach = mp.log(max(keys)) + 32
        low = -max(reach + spread**2 / 2 if spread**2 < 2 * reach else spread * mp.sqrt(2 * reach), mpf(32))
        high = mpf(9) / 2 + 9 * spread
        inner = _inner(spread, reach, degree)
        sums = [[mpf(0)] * 6 for _ in keys]
        for u, weight in _panels(_edges(low, high, spread), degree):
            phi, psi1, psi2, psi3, psi4 = inner(u)
            del psi1
            plain = mp.exp(-mp.exp(u))
            for total, n in zip(sums, map(int, keys), strict=True):
                power = phi ** (n - 2)
                total[0] += weight * (plain - power * phi * phi)
                for place, psi in ((1, psi2), (2, psi3), (3, psi4)):
                    total[place] += weight * psi * power * phi
                total[4] += weight * psi2 * psi2 * power
        return [_record(total, int(n), spread) for total, n in zip(sums, keys, strict=True)]


def _record(total: list[mpf], n: int, sigma: mpf) -> dict[str, mpf]:
    log_z, square, cube = total[0], n * total[1], mpf(n) / 2 * total[2]
    square_squared = mpf(n) / 6 * total[3] + mpf(n) * (n - 1) / 6 * total[4]
    return {
        "log_sum_exp": log_z,
        "entropy": log_z - sigma**2 * (1 - square),
        "p_squared": square,
        "p_cubed": cube,
        "jacobian_trace": 1 - square,
        "jacobian_norm_squared": square - 2 * cube + square_squared,
    }


def _inner(sigma: mpf, reach: mpf, degree: int):
    """u -> phi and E[e^(k y) exp(-e^y)] for k = 1 to 4, y = u + sigma x."""
    if sigma < 0.4:
        nodes = [(x, w * mp.npdf(x)) for x, w in _panels([mpf(i) * 3 for i in range(-3, 4)], degree)]

        def over_x(u: mpf) -> list[mpf]:
            sums = [mpf(0)] * 5
            for x, weight in nodes:
                t = mp.exp(u + sigma * x)
                term = weight * mp.exp(-t)
                for k in range(5):
                    sums[k] += term
                    term *= t
            return sums

        return over_x
    # Below -reach exp(-e^y) is 1 and e^y is 0; above 5 both are 0.
    start = -mp.ceil(reach)
    width = min(mpf(3), 2 * sigma)
    count = int(mp.ceil((5 - start) / width))
    nodes = []
    for y, weight in _panels([start + width * i for i in range(count + 1)], degree):
        t = mp.exp(y)
        kept = weight * mp.exp(-t) / (sigma * mp.sqrt(2 * mp.pi))
        nodes.append((y, [kept * t**k for k in range(5)]))

    def over_y(u: mpf) -> list[mpf]:
        sums = [mp.ncdf((start - u) / sigma), mpf(0), mpf(0), mpf(0), mpf(0)]
        for y, terms in nodes:
            distance = (y - u) / sigma
            if abs(distance) > 20:  # e^(k y) moves the bulk to k sigma
                continue
            density = mp.exp(-distance * distance / 2)
            for k in range(5):
                sums[k] += terms[k] * density
        return sums

    return over_y


def _edges(low: mpf, high: mpf, sigma: mpf) -> list[mpf]:
    """Panels of length 3 where e^(-e^u) turns, longer with sigma elsewhere."""
    edges = [low]
    while edges[-1] < high:
        turns = -36 < edges[-1] < 5
        edges.append(edges[-1] + (mpf(3) if turns else max(mpf(3), sigma / 2)))
    return edges


def _panels(edges: Sequence[mpf], degree: int):
    rule = GaussLegendre(mp).calc_nodes(degree, mp.prec)
    for left, right in itertools.pairwise(edges):
        half, middle = (right - left) / 2, (right + left) / 2
        for node, weight in rule:
            yield middle + half * node, half * weight


def attention_averages(
    keys: Sequence[float], d_k: int, scale: float, nodes: int, digits: int = 12
) -> list[dict[str, mpf]]:
    """The same averaged over |q|^2, chi-square with d_k: Gauss's rule for its weight x^(d/2 - 1) e^-x, x = |q|^2/2.

    Nodes are the eigenvalues of Laguerre's matrix, weights the squares of what its eigenvectors begin with.
    rootdk.theory uses the trapezoidal rule in ln |q|.
    """
    with mp.workdps(digits + 10):
        alpha = mpf(d_k) / 2 - 1
        matrix = mp.matrix(nodes)
        for i in range(nodes):
            matrix[i, i] = 2 * i + 1 + alpha
            if i:
                matrix[i, i - 1] = matrix[i - 1, i] = mp.sqrt(i * (i + alpha))
        values, vectors = mp.eigsy(matrix)
        sums = [dict.fromkeys(FIELDS, mpf(0)) for _ in keys]
        for place in range(nodes):
            weight = vectors[0, place] ** 2
            for total, part in zip(sums, averages(keys, abs(scale) * mp.sqrt(2 * values[place]), digits), strict=True):
                for field in FIELDS:
                    total[field] += weight * part[field]
        return sums


def two_keys(d_k: int, scale: float, digits: int = 20) -> dict[str, mpf]:
    """The averages of attention over two keys for even d_k, where everything hangs on the difference of the two scores.

    It is sqrt(2) scale times a product <q, k> of standard normal vectors, and that is a sum of m = d_k/2 numbers of
    density e^-|x|/2. So its density is e^-|x| times a polynomial, with coefficients (m-1+j)!/(j! (m-1-j)! 2^j) of
    x^(m-1-j).
    """
    with mp.workdps(digits + 10):
        m, width = d_k // 2, mp.sqrt(2) * abs(mpf(scale))
        polynomial = [mp.fac(m - 1 + j) / (mp.fac(j) * mp.fac(m - 1 - j) * mpf(2) ** j) for j in range(m)]
        front = 2 / (mpf(2) ** m * mp.fac(m - 1))
        bend, spread = 1 / width, mp.sqrt(d_k)
        far = 60 + 12 * spread
        edges = {mpf(0), far, *(bend * k / 2 for k in range(1, 60)), *(spread * k / 4 for k in range(1, 49))}
        sums = dict.fromkeys(FIELDS, mpf(0))
        for x, weight in _panels(sorted(edge for edge in edges if edge <= far), 3):
            chance = weight * front * mp.exp(-x) * mp.polyval(polynomial, x)
            gap = width * x
            trace = 1 / (2 * mp.cosh(gap / 2) ** 2)  # 2 p (1 - p)
            above = mp.log1p(mp.exp(-gap))  # ln Z less the larger logit
            values = (gap / 2 + above, above + gap / (1 + mp.exp(gap)), 1 - trace, 1 - 3 * trace / 2, trace, trace**2)
            for field, value in zip(FIELDS, values, strict=True):
                sums[field] += chance * value
        return sums

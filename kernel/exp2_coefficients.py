"""Make the polynomials of the kernel's exp2: the least relative error for 2^f on an interval, with p(0) = 1 exactly.

Run it (`python kernel/exp2_coefficients.py`, needs mpmath) to print the tables of powers-inl.h and the error of each.
p(0) = 1 matters: the weight of a row's largest key is then exactly 1 before it is normalised, and a single key gets
exactly its value back.
"""

import mpmath

mpmath.mp.dps = 60


def fit(degree: int, low: mpmath.mpf, high: mpmath.mpf) -> tuple[list[mpmath.mpf], mpmath.mpf]:
    """Remez exchange on the relative error (1 + c_1 f + c_2 f^2 + ...) / 2^f - 1."""
    unknowns = degree + 1  # c_1 ... c_degree and the level of the error
    half = mpmath.mpf(1) / 2
    nodes = [
        (low + high) / 2 + (high - low) / 2 * mpmath.cos(mpmath.pi * (unknowns - i - half) / unknowns)
        for i in range(unknowns)
    ]
    grid = [low + (high - low) * i / 6000 for i in range(6001)]
    for _ in range(25):
        matrix, right = mpmath.matrix(unknowns, unknowns), mpmath.matrix(unknowns, 1)
        for row, f in enumerate(nodes):
            for power in range(1, degree + 1):
                matrix[row, power - 1] = f**power / mpmath.mpf(2) ** f
            matrix[row, degree] = (-1) ** row
            right[row] = 1 - mpmath.mpf(2) ** -f
        solution = mpmath.lu_solve(matrix, right)
        tail = [solution[i] for i in range(degree)]
        error = [_relative_error(tail, f) for f in grid]
        peaks = _alternating_peaks(grid, error)
        if len(peaks) < unknowns:
            break
        # The forced zero at f = 0 can leave one peak too many: the lower of the two ends goes.
        keep_left = abs(_relative_error(tail, peaks[0])) > abs(_relative_error(tail, peaks[-1]))
        nodes = peaks[:unknowns] if keep_left else peaks[-unknowns:]
    return [mpmath.mpf(1), *tail], max(abs(e) for e in error)


def _relative_error(tail: list[mpmath.mpf], f: mpmath.mpf) -> mpmath.mpf:
    return (1 + sum(c * f ** (i + 1) for i, c in enumerate(tail))) / mpmath.mpf(2) ** f - 1


def _alternating_peaks(grid: list[mpmath.mpf], error: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """The largest error in each run of one sign: the points where the next round pins the error."""
    peaks: list[tuple[mpmath.mpf, mpmath.mpf]] = []
    for f, e in zip(grid, error, strict=True):
        if e == 0:
            continue
        if peaks and (peaks[-1][1] > 0) == (e > 0):
            if abs(e) > abs(peaks[-1][1]):
                peaks[-1] = (f, e)
        else:
            peaks.append((f, e))
    return [f for f, _ in peaks]


if __name__ == "__main__":
    tables = (("exp2_unit_f32", 5, 0, 1, 11), ("exp2_f32", 6, -0.5, 0.5, 11), ("exp2_f64", 12, -0.5, 0.5, 20))
    for name, degree, low, high, digits in tables:
        coefficients, error = fit(degree, mpmath.mpf(low), mpmath.mpf(high))
        print(f"// {name}: degree {degree} on [{low}, {high}], relative error {mpmath.nstr(error, 3)}")
        print(", ".join(mpmath.nstr(c, digits) for c in coefficients))

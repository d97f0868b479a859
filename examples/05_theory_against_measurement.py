"""One plot: the entropy of the weights that theory predicts, and that the operator measures, under three scales.

python examples/05_theory_against_measurement.py [FILE.html]
"""

import sys

import numpy as np
import plotly.graph_objects as go

import rootdk

KEYS, ROWS = 256, 512
widths = np.array([4, 8, 16, 32, 64, 128, 256, 512])
rng = np.random.default_rng(0)
figure = go.Figure()
for rule in ("none", "sqrt", "dk"):
    predicted = rootdk.predict(widths, KEYS, rule).mean_entropy_ratio
    measured = []
    for d_k in widths:
        query, key = rng.standard_normal((ROWS, d_k)), rng.standard_normal((KEYS, d_k))
        _, reading = rootdk.measure(query, key, key, scale=rule)
        measured.append(reading.entropy_ratio.mean())
    formula = rootdk.scaling.rule(rule).formula
    figure.add_scatter(x=widths, y=predicted, mode="lines", name=f"{formula}, predicted")
    figure.add_scatter(x=widths, y=measured, mode="markers", name=f"{formula}, measured")
    print(f"{formula:14} largest difference {np.abs(predicted - measured).max():.3f}")
figure.update_xaxes(type="log", title="d_k")
figure.update_yaxes(title="entropy of the weights / ln(keys)", range=[0, 1.05])
figure.write_html(sys.argv[1] if len(sys.argv) > 1 else "theory-against-measurement.html")

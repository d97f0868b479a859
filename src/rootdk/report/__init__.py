"""Results -> figures -> one HTML file that opens offline.

    render(results, claims, about)   the page as text: plotly.js inside, formulas as MathML, nothing to fetch
    check_plotly()                   an error that says how to get plotly, if it is missing

It reads results and plain dictionaries, and runs nothing.
"""

from .page import check_plotly, render

__all__ = ["check_plotly", "render"]

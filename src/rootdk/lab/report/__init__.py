"""Results -> figures -> one HTML file that opens offline.

    render(results, claims, about)   the page as text: plotly.js inside, formulas as MathML, nothing to fetch
    render_audit(audit, about)       the same for an audit's dictionary
    render_training(results)         the same for the runs of a training study
    check_plotly()                   an error that says how to get plotly, if it is missing

It reads results and plain dictionaries, and runs nothing.
"""

from ..drawing import check_plotly
from .audit_page import render_audit
from .study_page import render
from .training_page import render_training

__all__ = ["check_plotly", "render", "render_audit", "render_training"]

"""What training showed: runs as plain data, the results that come with the package, and what to read off them.

    RunSpec              everything that one training run depends on
    Run                  what it recorded, step by step; to JSON and back
    Results              the runs of a study with the versions that made them; `shipped()` gives those of the package
    interval(values)     mean and half the width of its confidence interval over seeds

Nothing here trains and nothing needs torch: `rootdk.lab.training` does the runs.
"""

from .interval import Interval, interval
from .results import Results, shipped
from .run import Layer, Moment, Run
from .spec import RunSpec

__all__ = ["Interval", "Layer", "Moment", "Results", "Run", "RunSpec", "interval", "shipped"]

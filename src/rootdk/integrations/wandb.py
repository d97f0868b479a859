"""WeightsAndBiases: the numbers of a step as a row of a run's history."""

from collections.abc import Mapping
from typing import Any

from rootdk.integrations.needed import needed

STEP = "attn/step"


class WeightsAndBiases:
    """Rows under their keys, over `attn/step`. Needs the package wandb.

    run        a run that is there already; that one is left open
    settings   without a run, what `wandb.init` is given, such as project="..." or mode="offline". A run that is active
               in the process when training starts is used in place of a new one, if there are no settings.

    The step is a value of each row, and the axis of all keys below `attn/`: a run that others write to as well counts
    rows by its own step, and drops what comes with a lower one.

        WeightsAndBiases(project="pretraining")
        WeightsAndBiases(wandb_logger.experiment)       # of Lightning

    >>> sink = WeightsAndBiases(mode="disabled")
    >>> sink.open()
    >>> sink.write(100, {"attn/max_logit": 7.5})
    >>> sink.close()
    """

    def __init__(self, run: Any = None, **settings: Any) -> None:
        self._init = needed("WeightsAndBiases", "wandb", "wandb", "init")
        self.run, self.settings = run, settings
        self._open: Any = None
        self._own = False

    def __repr__(self) -> str:
        return "WeightsAndBiases()"  # settings may hold a key that is nobody's business

    def open(self) -> None:
        """Find or start the run."""
        import wandb

        if self._open is not None:
            return
        found = self.run if self.run is not None else None if self.settings else wandb.run
        self._own = found is None
        self._open = self._init(**self.settings) if found is None else found
        self._open.define_metric(STEP)
        self._open.define_metric("attn/*", step_metric=STEP)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one row."""
        self._open.log({STEP: step, **values})

    def close(self) -> None:
        """Finish a run that was started here."""
        if self._open is not None and self._own:
            self._open.finish()
        self._open = None

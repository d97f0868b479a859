"""Made-up runs of training from which a claim's verdict can be foreseen."""

from typing import Any

from rootdk.lab.training import Layer, Moment, Results, Run, RunSpec

START = 4.0


def made(
    spec: RunSpec, loss: float, entropy: float = 0.5, transplant: Any = (), accuracy: float = 0.5, spikes: int = 0
) -> Run:
    """A run that went from START to `loss`, give or take a little by its seed, which arms do not have in common."""
    side = -1 if (spec.rule == "none") != (spec.d_k == 16) else 1
    here = loss + 0.001 * side * (spec.seed - 1)
    layer = Layer(entropy, 0.0, 0.5, 1.0, 5.0, 1.0, 1.0)
    moments = tuple(
        Moment(step, value, value, accuracy, value, accuracy, (layer,)) for step, value in ((0, START), (10, here))
    )
    return Run(spec, moments, spikes=spikes, transplant=transplant)


def transplants(at_sixty: float, at_thousands: float, uniform: float) -> Results:
    curve = ((1e-3, uniform, 0.01), (1.0, 1.0, 6.0), (10.0, at_sixty, 60.0), (1e3, at_thousands, 6e3))
    specs = [RunSpec(task="text", seed=seed, transplant=(1.0,)) for seed in range(3)]
    return Results.of(
        made(spec, 1.0, transplant=tuple((k, loss + 0.001 * (spec.seed - 1), z) for k, loss, z in curve))
        for spec in specs
    )


def ladder(entropy: float, spikes: int, sharp_recall: float) -> Results:
    """Text at a good and at a high learning rate, and recall that is learned with this entropy."""
    runs = []
    for seed in range(8):
        runs.append(made(RunSpec(task="text", learning_rate=1e-3, seed=seed), 2.0))
        runs.append(made(RunSpec(task="text", learning_rate=0.1, seed=seed), 3.0, entropy, spikes=spikes))
        runs.append(made(RunSpec(task="recall", seed=seed), 0.01, sharp_recall, accuracy=1.0))
    return Results.of(runs)

"""Reading and replacing activations by name; logit lens, attribution, ablation, patching and steering."""

from vantage.interventions.ablation import ablate, ablation
from vantage.interventions.activations import Activation, activations
from vantage.interventions.attribution import Attribution, attribute
from vantage.interventions.edits import Edit
from vantage.interventions.lens import LogitLens, TunedLens, fit_lens, logit_lens
from vantage.interventions.patching import patch, patch_path
from vantage.interventions.plots import plot_attribution, plot_lens, plot_sweep
from vantage.interventions.steering import knock_out, steering_vector
from vantage.interventions.sweeps import Sweep
from vantage.interventions.trace import Trace, trace, tracing

__all__ = [
    "Activation",
    "Attribution",
    "Edit",
    "LogitLens",
    "Sweep",
    "Trace",
    "TunedLens",
    "ablate",
    "ablation",
    "activations",
    "attribute",
    "fit_lens",
    "knock_out",
    "logit_lens",
    "patch",
    "patch_path",
    "plot_attribution",
    "plot_lens",
    "plot_sweep",
    "steering_vector",
    "trace",
    "tracing",
]

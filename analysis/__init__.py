"""What it means: the records of a results folder as tidy tables, statistics, tables to read and answers to compare.

from analysis import load_runs, load_requests, load_rounds, load_acceptance, load_histogram
from analysis import pair, bootstrap_ci, frontier

runs = load_runs("results/runs")
pairs = pair(load_requests("results/runs"), "ddtree-64")
"""

from analysis.acceptance import load_acceptance, load_histogram
from analysis.advise_frame import load_advice
from analysis.load import load_requests, load_rounds, load_runs
from analysis.load_figures import load_traces
from analysis.loaders import bootstrap_ci, frontier, pair
from analysis.replay import load_curve, load_replay

__all__ = [
    "bootstrap_ci",
    "frontier",
    "load_acceptance",
    "load_advice",
    "load_curve",
    "load_histogram",
    "load_replay",
    "load_requests",
    "load_rounds",
    "load_runs",
    "load_traces",
    "pair",
]

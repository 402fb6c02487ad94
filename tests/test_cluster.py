"""One job per cell on submitit's local executor: the same results as here, and what fails is told."""

from __future__ import annotations

import pytest

from harness.records import read_json, sitting_lines

pytest.importorskip("submitit")
LOCAL = ("cluster=slurm", "cluster.executor=local", "cluster.parameters.cpus_per_task=1", "repeats=1")


def test_each_cell_is_a_job_and_repeating_the_command_submits_none(world):
    words = ("-m", "seed=0,1", "method=faulty", "method.fault=lie,none", *LOCAL)
    done = world.started(*words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.count("submitted as job") == 2 and done.stderr.count("invalid: faulty-lie") == 2
    cells = list((world.results / "cells").iterdir())
    assert len(cells) == 2
    for cell in cells:
        statuses = {"autoregressive": "complete", "faulty-lie": "invalid", "faulty-none": "complete"}
        assert read_json(cell / "status.json") == {"status": "complete", "arms": statuses}
        assert len([line for line in sitting_lines(cell) if line["phase"] == "timed"]) == 3 * 5
    again = world.run(*words)
    assert again.returncode == 1 and "submitted" not in again.stdout and "6 of 6 arms had ended" in again.stdout
    world.assert_no_process_left()


def test_a_cluster_that_is_not_there_is_refused(world):
    refused = world.run("method=dflash", *LOCAL, "cluster.executor=abacus")
    assert refused.returncode == 2 and "cluster is not accepted by submitit" in refused.stderr
    assert refused.stderr.count("\n") == 1

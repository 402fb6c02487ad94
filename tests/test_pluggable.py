"""A method from outside the repository, one file and one YAML, goes through sweep, records and table."""

from __future__ import annotations

METHOD = '''
"""Every other position of the block."""
from dataclasses import dataclass
from typing import ClassVar

from methods.base import Method


@dataclass(frozen=True)
class Striped(Method):
    stride: int
    greedy: bool = True
    name: ClassVar[str] = "striped"

    @property
    def arm(self):
        return f"striped-{self.stride}"

    @property
    def node_budget(self):
        return self.stride * 2

    def width(self, block_size):
        return 1 + block_size // self.stride

    def build(self, candidates, root):
        raise NotImplementedError
'''


def test_a_method_from_outside_runs_through_sweep_and_table(world):
    world.write("modules/striped.py", METHOD)
    world.write("conf/method/striped.yaml", "_target_: striped.Striped\nstride: 2\ngreedy: true\n")
    done = world.run("-m", "method=striped,dflash", "method.stride=2", "budget=16,64")
    assert done.returncode == 2  # dflash has no stride
    assert done.stderr.count("\n") == 1 and "method.stride" in done.stderr
    done = world.run("-m", "method=striped", "method.stride=2,4", "budget=16,64")
    assert done.returncode == 0, done.stderr
    assert "striped-2" in done.stdout and "striped-4" in done.stdout
    assert world.arm("striped-4")["settings"] == {"_target_": "striped.Striped", "stride": 4, "greedy": True}
    assert world.arm("striped-4")["budget"] == 8
    assert sorted({line["arm"] for line in world.timed()}) == ["autoregressive", "striped-2", "striped-4"]
    done = world.run("method=striped", "method.stride=often")
    assert (done.returncode, done.stderr) == (2, "method.stride=often is not accepted: an integer is.\n")

"""The settings of a simulated job: refused where they are made, each by its name."""

import pytest

from resilience_core import ConfigError
from straggler.simulation.simulator import SimulatedJob, SimulatedSlowdown


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"ranks": 1}, "SimulatedJob.ranks is 1; expected a whole number from 2 to 1000000"),
        ({"ranks": 8.0}, "SimulatedJob.ranks is 8.0"),
        ({"windows": 2.5}, "SimulatedJob.windows is 2.5"),
        ({"noise": "much"}, "SimulatedJob.noise is 'much'"),
        ({"outliers": 1.5}, "SimulatedJob.outliers is 1.5; expected a number from 0 to 1"),
        ({"exact": "no"}, "SimulatedJob.exact is 'no'; expected True or False"),
        ({"spread_shape": "norml"}, "did you mean 'normal'"),
        ({"slowdowns": ("slow_rank",)}, r"expected SimulatedSlowdown\(\.\.\.\) each"),
        ({"slowdowns": 3}, "SimulatedJob.slowdowns is 3; expected a tuple of"),
        ({"ranks": 2, "slowdowns": [SimulatedSlowdown(kind="drift", rank=2)]}, "is on rank 2; expected a rank from 0"),
    ],
)
def test_a_job_that_cannot_be_simulated_is_refused(setting, said):
    with pytest.raises(ConfigError, match=said):
        SimulatedJob(**setting)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"kind": "slow_rnk"}, "did you mean 'slow_rank'"),
        ({"rank": -1}, "SimulatedSlowdown.rank is -1"),
        ({"slowdown": "10 %"}, "SimulatedSlowdown.slowdown is '10 %'"),
        ({"windows": 0}, "SimulatedSlowdown.windows is 0"),
    ],
)
def test_a_slowdown_that_cannot_be_simulated_is_refused(setting, said):
    with pytest.raises(ConfigError, match=said):
        SimulatedSlowdown(**{"kind": "drift", "rank": 0, **setting})

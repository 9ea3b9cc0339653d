"""What the tests of measurement share."""

import pytest

from straggler import Detector
from straggler.probes.cpu_wall import CpuWallProbe


@pytest.fixture
def detector():
    made = Detector()
    made.initialize(probes=[CpuWallProbe()])
    yield made
    made.shutdown()

"""Nodes whose ranks are alike: then a job has only as many values as nodes.

By an analysis of variance (Fisher 1925).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.scoring.peers import PeerGroups
from straggler.scoring.spreads import spread_of

__all__ = ["beyond_its_node"]

Float32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.intp]

_PRIOR_NODES, _PRIOR_COUNT = 0.02, 6.0
_NODE_SIGMAS = 5.2
_ALIKE = 4.0


def beyond_its_node(average: Float32, peers: PeerGroups, cells: Cells, z: float, floor: float) -> Bools:
    """Return which cells are slow among all nodes, or in their own.

    Args:
        average: Logarithms of the ratio to the reference, shape ``(rows, ranks)``.
        peers: Who is compared with whom.
        cells: Flat indices.
        z: Normal quantile for a rank within its node.
        floor: The least that a rank has to be over its node.
    """
    alike = peers.node_means(average)
    if alike is None:
        return np.ones(len(cells), dtype=bool)
    means, nodes, node_of = alike
    rows, ranks = np.divmod(cells, average.shape[1])
    sizes = nodes.group_sizes()
    spread = np.nan_to_num(spread_of(means, nodes, inner=False)[0]).astype(np.float64)
    square = (sizes * spread**2 + _PRIOR_COUNT * _PRIOR_NODES**2) / (sizes + _PRIOR_COUNT)
    bars = np.broadcast_to(nodes.spread_out(_NODE_SIGMAS * np.sqrt(square)), means.shape)
    own = means[rows, node_of[ranks]]
    among_nodes = average.flat[cells] >= bars[rows, node_of[ranks]]
    within = average - means[:, node_of]
    some, place = np.unique(rows, return_inverse=True)
    inside = spread_of(within[some], PeerGroups.everybody(average.shape[1]), inner=True)[1][place, 0]
    beyond = among_nodes | (average.flat[cells] - own >= np.maximum(z * inside, floor))
    shared = np.nanvar(means[some], axis=1) * average.shape[1] / means.shape[1]
    return np.asarray(beyond | (shared < _ALIKE * np.nanvar(within[some], axis=1))[place])

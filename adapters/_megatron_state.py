"""What the Megatron module reads from and writes to the caller's duck-typed configuration and global state."""

from __future__ import annotations

import logging
import os
from typing import Any

import attrs

from resilience_core.errors import ConfigError
from resilience_core.translator import STATE_FILE_NAME

__all__ = ["MegatronSettings", "completed_steps", "count", "ft_config", "has_iterations_left", "mirror", "mirror_start"]

logger = logging.getLogger(__name__)

_NEEDED = {
    "cfg": "cfg (the configuration)",
    "rank_monitor_client": "rank_monitor_client (None until setup() sets it)",
    "fault_tolerance_state": "fault_tolerance_state (an object that takes attributes, such as types.SimpleNamespace())",
}
"""Attributes of a global state, and what they have to be."""


@attrs.frozen
class MegatronSettings:
    """What ``setup`` takes from the configuration.

    Args:
        folder: Folder of the checkpoints.
        calculate_timeouts: Learn timeouts from what is observed.
        asynchronous_saves: Checkpoints are written in the background.
        autoresume: Make the finished flag when training is complete.
    """

    folder: str
    calculate_timeouts: bool
    asynchronous_saves: bool
    autoresume: bool

    @classmethod
    def read(cls, config: Any, global_state: Any) -> MegatronSettings:
        """Read them from a configuration container, and check that the global state can be used.

        Raises:
            ConfigError: ``config.checkpoint.save`` (None, or an empty name) or ``config.ft`` is not set, or either
                object lacks an attribute.
        """
        if getattr(config, "ft", None) is None:
            raise ConfigError("config.ft is None: set it to use fault tolerance, or do not call setup()")
        _check(global_state)
        folder = _required(config, "checkpoint", "save")
        if folder is None or not os.fspath(folder).strip():
            raise ConfigError(
                f"config.checkpoint.save is {folder!r}: fault tolerance keeps its state in the folder of the "
                "checkpoints; set it"
            )
        return cls(
            folder=os.fspath(folder),
            calculate_timeouts=bool(_required(config, "ft", "calc_ft_timeouts")),
            asynchronous_saves=bool(_required(config, "checkpoint", "async_save")),
            autoresume=bool(getattr(config.ft, "autoresume", False)),
        )

    @property
    def state_path(self) -> str:
        """File of the learned timeouts."""
        return os.path.join(self.folder, STATE_FILE_NAME)


def _required(config: Any, *path: str) -> Any:
    """Return an attribute of an attribute of the configuration."""
    found = config
    for depth, name in enumerate(path, 1):
        if not hasattr(found, name):
            raise ConfigError(
                f"adapters.megatron.setup(): config has no '{'.'.join(path[:depth])}'; it needs checkpoint.save, "
                "checkpoint.async_save and ft.calc_ft_timeouts"
            )
        found = getattr(found, name)
    return found


def _check(global_state: Any) -> None:
    """Raise where the global state lacks something; say so where it has another configuration, without ``ft``."""
    kind = f"{type(global_state).__module__}.{type(global_state).__qualname__}"
    if missing := [name for name in _NEEDED if not hasattr(global_state, name)]:
        raise ConfigError(
            f"adapters.megatron.setup(): global_state ({kind}) has no attribute '{missing[0]}'; it needs "
            f"{', '.join(_NEEDED.values())}"
        )
    try:
        mirror(global_state, is_setup_section_open=False)
    except AttributeError as error:
        raise ConfigError(
            f"adapters.megatron.setup(): global_state.fault_tolerance_state is {global_state.fault_tolerance_state!r}, "
            "which takes no attributes; make it an object that does, such as types.SimpleNamespace()"
        ) from error
    if ft_config(global_state) is None:
        logger.warning(
            "global_state.cfg has no 'ft', so that steps and saves are not watched, though the configuration that "
            "adapters.megatron.setup() was given has one; let global_state.cfg be that configuration"
        )


def ft_config(global_state: Any) -> Any:
    """Return ``global_state.cfg.ft``, None where there is none."""
    return getattr(global_state.cfg, "ft", None)


def completed_steps(global_state: Any) -> int | None:
    """Return the number of training steps completed, None where the global state does not count them."""
    step = getattr(getattr(global_state, "train_state", None), "step", None)
    return None if step is None else int(step)


def has_iterations_left(global_state: Any) -> bool:
    """Return whether fewer steps are complete than ``cfg.train.train_iters``; False where either is unknown."""
    step = completed_steps(global_state)
    last = getattr(getattr(global_state.cfg, "train", None), "train_iters", None)
    return step is not None and isinstance(last, int) and step < last


def mirror(global_state: Any, **values: Any) -> None:
    """Set attributes of ``global_state.fault_tolerance_state``."""
    state = global_state.fault_tolerance_state
    for name, value in values.items():
        setattr(state, name, value)


def count(global_state: Any, name: str) -> None:
    """Add one to a counter in ``global_state.fault_tolerance_state``."""
    state = global_state.fault_tolerance_state
    setattr(state, name, getattr(state, name, 0) + 1)


def mirror_start(global_state: Any, settings: MegatronSettings) -> None:
    """Set the attributes of ``global_state.fault_tolerance_state`` as they are when a run begins."""
    mirror(
        global_state,
        ft_state_path=settings.state_path,
        is_async_chkpt_enabled=settings.asynchronous_saves,
        is_calculating_timeouts=settings.calculate_timeouts,
        is_persistent_chkpt_loaded=False,
        is_setup_section_open=True,
        seen_checkpoints_cnt=0,
        seen_tr_iters_cnt=0,
        curr_eval_iter_idx=0,
    )

"""ExceptionPolicy: an exception that leaves training becomes a request to the launcher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from resilience_core.errors import ConfigError
from resilience_core.exception_text import text_of
from resilience_core.hookspecs import hookimpl
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.protocol.control import WorkloadAction, WorkloadControlRequest

__all__ = ["ExceptionHandling", "ExceptionPolicy", "check"]

Answer = WorkloadControlRequest | WorkloadAction | None

ExceptionTable = Mapping[type[BaseException], WorkloadControlRequest | WorkloadAction]

ExceptionHandling = Callable[[BaseException], Answer] | ExceptionTable
"""A function of the exception, or a table of types: the most derived type that fits is taken. None says nothing."""

logger = logging.getLogger(__name__)


class ExceptionPolicy:
    """A bus plugin: asks the policy what an exception means and sends the answer to the launcher.

    Args:
        policy: Exception to request.
        client: The rank's client.

    Raises:
        ConfigError: The policy is neither a function nor a table of exception types.
    """

    def __init__(self, policy: ExceptionHandling, client: RankMonitorClient) -> None:
        self._policy = check(policy)
        self._client = client

    @hookimpl(tryfirst=True)
    def training_error(self, error: BaseException) -> None:
        """Ask the policy about the exception, and send its answer to the launcher."""
        answer = self._answer(error)
        if isinstance(answer, WorkloadAction):
            answer = WorkloadControlRequest(answer, f"{type(error).__name__}: {text_of(error)}")
        if answer is None:
            return
        if not isinstance(answer, WorkloadControlRequest):
            raise ConfigError(
                f"exc_handling_policy answered {answer!r} to {type(error).__name__}; it must be a "
                "WorkloadControlRequest, a WorkloadAction or None"
            )
        if not self._client.is_initialized:
            logger.warning("no launcher listens; not sent: %s (%s)", answer.action.value, answer.description)
            return
        self._client.send_workload_control_request(answer)

    def _answer(self, error: BaseException) -> object:
        if not isinstance(self._policy, Mapping):
            return self._policy(error)
        for kind in type(error).__mro__:
            if kind in self._policy:
                return self._policy[kind]
        return None


def check(policy: ExceptionHandling) -> ExceptionHandling:
    """Return the policy, when it is one.

    Raises:
        ConfigError: It is neither a function nor a table of exception types.
    """
    if isinstance(policy, Mapping):
        for kind, answer in policy.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"exc_handling_policy has the key {kind!r}; keys are exception types")
            if not isinstance(answer, WorkloadControlRequest | WorkloadAction):
                raise ConfigError(
                    f"exc_handling_policy has {answer!r} for {kind.__name__}; give a WorkloadControlRequest or a "
                    "WorkloadAction"
                )
    elif not callable(policy):
        raise ConfigError(
            f"exc_handling_policy is {policy!r}; give a function of the exception, or a table of exception types"
        )
    return policy

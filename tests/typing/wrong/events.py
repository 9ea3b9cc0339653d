from resilience_core import EventBus, RunContext, bus
from resilience_core import hookimp  # mypy: attr-defined; pyright: reportAttributeAccessIssue

bus().step_start(3)  # mypy: call-arg; pyright: reportCallIssue
bus().step_start(iteration="3")  # mypy: arg-type; pyright: reportArgumentType
bus().step_begin(iteration=3)  # mypy: attr-defined; pyright: reportAttributeAccessIssue
bus().checkpoint_start(iteration=3, kind="saving")  # mypy: arg-type; pyright: reportArgumentType
bus().checkpoint_loaded(iteration=3)  # mypy: call-arg; pyright: reportCallIssue
bus.register(object())  # mypy: attr-defined; pyright: reportFunctionMemberAccess
EventBus("mine")  # mypy: call-arg; pyright: reportCallIssue
RunContext(0)  # mypy: call-arg; pyright: reportCallIssue

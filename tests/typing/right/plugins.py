"""Plugins of the bus, and a bus with a plugin."""

from resilience_core import (
    EventBus,
    HeartbeatMonitor,
    RunContext,
    SectionMonitor,
    StopTraining,
    __version__,
    bus,
    hookimpl,
)
from resilience_core.errors import PluginError
from resilience_core.hookspecs import CheckpointKind, LoadSource
from resilience_core.testing import EventRecorder


class Counter:
    def __init__(self) -> None:
        self.steps = 0

    @hookimpl
    def setup(self, context: RunContext) -> None:
        self.rank: int = context.rank

    @hookimpl
    def step_end(self, iteration: int) -> None:
        self.steps += 1
        if iteration > 1000:
            raise StopTraining("enough", exit_code=0)

    @hookimpl(trylast=True)
    def checkpoint_end(self, kind: CheckpointKind, error: BaseException | None) -> None: ...

    @hookimpl
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None: ...


counter = Counter()
counter.step_end(3)
events: EventBus = bus()
try:
    name: str = events.register(counter, name="counter")
except PluginError:
    events.unregister(counter)
events.register(SectionMonitor(state_path="ft_state.json", calculate_timeouts=True))
events.register(HeartbeatMonitor())
recorder = EventRecorder()
EventBus().register(recorder)
events.setup(context=RunContext.from_environment(framework="mine"))
events.checkpoint_loaded(iteration=7, source="persistent")
events.step_start(iteration=7)
events.step_end(iteration=7)
events.eval_step_start(iteration=8, eval_index=0)
events.eval_step_end(iteration=8, eval_index=0)
events.checkpoint_start(iteration=8, kind="save")
events.checkpoint_end(iteration=8, kind="save")
events.checkpoint_end(iteration=8, kind="finalize", error=OSError())
events.training_error(error=ValueError(), iteration=8)
events.teardown(reason="completed")
registered: list[object] = events.plugins()
version: str = __version__

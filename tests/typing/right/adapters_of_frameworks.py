"""The adapters: a raw loop, Lightning, Hugging Face, Megatron."""

from typing import Any

from adapters import FaultTolerance, megatron
from adapters import huggingface as hf
from adapters import lightning as pl
from resilience_core import EventBus, RankMonitorClient, RunContext, WorkloadAction


def raw_loop() -> None:
    ft = FaultTolerance(state_path="ft_state.json", calculate_timeouts=True, api="heartbeats", autoresume=False)
    with ft.run(), ft.step(0):
        pass
    with ft.run(RunContext(rank=3)):
        ft.checkpoint_loaded(7)
        with ft.step(iteration=7):
            pass
        with ft.eval_step(8, eval_index=0):
            pass
        with ft.checkpoint(8, kind="save"):
            ft.end_by_signal()
    bus: EventBus = ft.bus
    client: RankMonitorClient = ft.client
    FaultTolerance(client=client, bus=bus)


def callbacks() -> list[Any]:
    return [
        pl.FaultToleranceCallback(autoresume=True, calculate_timeouts=True, exp_dir="out"),
        pl.FaultToleranceSectionsCallback(
            False, True, exc_handling_policy={MemoryError: WorkloadAction.ExcludeThisNode}
        ),
        pl.StragglerDetectionCallback(300.0, True, True, 3, 0.7, 0.7, stop_if_detected=False),
    ]


def trainer_of_transformers(trainer: Any) -> None:
    hf.protect(trainer, calculate_timeouts=True, api="sections")
    hf.FaultToleranceCallback(autoresume=False).attach(trainer)


def megatron_loop(config: Any, global_state: Any) -> None:
    megatron.setup(config, global_state)
    megatron.on_training_step_start(global_state)
    megatron.on_training_step_end(global_state)
    megatron.on_checkpointing_start(global_state)
    megatron.on_checkpointing_end(is_async_finalization=False, global_state=global_state)
    megatron.shutdown(global_state)

"""What a node remembers of a job for the launcher that comes after."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent.node_memory import MEMORY_FILE, MemoryWriter, NodeMemory, forget, read_memory, remember


def test_what_is_remembered_is_read_until_it_is_forgotten(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert read_memory(folder) == NodeMemory(False, ())

    remember(folder, [("10.0.0.1", 1), ("10.0.0.2", 2)])
    remember(folder, [("10.0.0.2", 2)])
    assert read_memory(folder) == NodeMemory(True, (("10.0.0.2", 2),))
    assert [path.name for path in tmp_path.iterdir()] == [MEMORY_FILE]

    forget(folder)
    forget(folder)
    assert read_memory(folder) == NodeMemory(False, ())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "contacts": [1]}', "[" * 100_000])
def test_a_damaged_memory_says_that_there_was_a_job(tmp_path: Path, text: str) -> None:
    (tmp_path / MEMORY_FILE).write_text(text)
    assert read_memory(str(tmp_path)) == NodeMemory(True, ())


def test_what_cannot_be_remembered_is_said_once_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / MEMORY_FILE).mkdir()
    said: list[str] = []
    memories = MemoryWriter(str(tmp_path), said.append)

    memories.remember([("10.0.0.1", 1)])
    memories.remember([("10.0.0.1", 1)])

    assert len(said) == 1
    assert f"{tmp_path / MEMORY_FILE} cannot be written: Is a directory" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == [MEMORY_FILE]

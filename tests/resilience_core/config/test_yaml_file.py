"""Reading a YAML file: one section, exact places, and every way in which a file can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resilience_core import ConfigError, FaultToleranceConfig
from resilience_core.config.nvrx_keys import IGNORED_KEYS

Read = Callable[[str], FaultToleranceConfig]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Write a file called ft.yaml and read it by that name."""
    monkeypatch.chdir(tmp_path)

    def write_and_read(text: str) -> FaultToleranceConfig:
        Path("ft.yaml").write_text(text)
        return FaultToleranceConfig.from_yaml_file("ft.yaml")

    return write_and_read


def test_a_section_at_the_top(read: Read):
    config = read("fault_tolerance:\n  rank_heartbeat_timeout: 12\n  rank_section_timeouts: {step: 3, setup: null}\n")
    assert config.rank_heartbeat_timeout == 12.0
    assert config.rank_section_timeouts == {"step": 3.0, "setup": None}
    assert config.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "a:\n  b:\n    fault_tolerance: {rank_heartbeat_timeout: 12}\n",
        "a:\n- x: 1\n- fault_tolerance: {rank_heartbeat_timeout: 12}\n",
        "base: &base {rank_heartbeat_timeout: 12}\nfault_tolerance:\n  <<: *base\n",
        "base: &base {rank_heartbeat_timeout: 9}\nfault_tolerance:\n  <<: *base\n  rank_heartbeat_timeout: 12\n",
        "fault_tolerance: &ft {rank_heartbeat_timeout: 12}\nagain: *ft\n",
        "a: &a\n  fault_tolerance: {rank_heartbeat_timeout: 12}\nb: *a\n",
        "a: &a\n  itself: *a\nfault_tolerance: {rank_heartbeat_timeout: 12}\n",
        "fault_tolerance: {rank_heartbeat_timeout: 1.2e1}\n",
        "fault_tolerance: {rank_heartbeat_timeout: 12e0}\n",  # text to YAML 1.1, a number to everybody
        "---\nfault_tolerance: {rank_heartbeat_timeout: 12}\n...\n",
    ],
)
def test_wherever_the_section_stands(read: Read, text: str):
    assert read(text).rank_heartbeat_timeout == 12.0


def test_a_section_whose_every_key_is_commented_out_is_the_defaults(read: Read):
    assert read("fault_tolerance:\n#  rank_heartbeat_timeout: 12\n") == FaultToleranceConfig()


@pytest.mark.parametrize("value", ["null", "~", "", "none", "None"])
def test_null_is_no_limit(read: Read, value: str):
    assert read(f"fault_tolerance:\n  rank_heartbeat_timeout: {value}\n").rank_heartbeat_timeout is None


def test_a_word_that_yaml_reads_as_false_is_the_word(read: Read):
    assert read("fault_tolerance:\n  learned_limits: off\n").learned_limits == "off"
    with pytest.raises(ConfigError, match=r"learned_limits .* is on: must be one of: off, relax, replace"):
        read("fault_tolerance:\n  learned_limits: on\n")


def test_a_misspelt_second_section_is_named(read: Read):
    config = read("fault_tolerance: {safety_factor: 5}\nmodel:\n  fault_tolerence: {rank_heartbeat_timeout: 3}\n")
    assert config.rank_heartbeat_timeout == FaultToleranceConfig().rank_heartbeat_timeout
    assert config.is_given("safety_factor")
    assert config.warnings == (
        "section 'fault_tolerence' in ft.yaml line 3 is not read, only 'fault_tolerance' in line 1 is; "
        "put its keys there, or remove it",
    )


@pytest.mark.parametrize("other", ["fault_tolerance_model: {layers: 3}", "fault_tolerant: true", "faults: [1]"])
def test_a_section_of_somebody_elses_is_not_named(read: Read, other: str):
    assert read(f"fault_tolerance: {{safety_factor: 5}}\n{other}\n").warnings == ()


def test_an_unknown_key_names_file_line_and_nearest(read: Read):
    with pytest.raises(ConfigError) as caught:
        read("fault_tolerance:\n  safety_factor: 5\n  rank_hearbeat_timeout: 3\n")
    assert str(caught.value) == (
        "unknown key 'rank_hearbeat_timeout' in ft.yaml line 3; did you mean 'rank_heartbeat_timeout'?"
    )


def test_an_unknown_key_that_is_near_nothing_lists_what_is_known(read: Read):
    with pytest.raises(ConfigError, match=r"unknown key 'zzz' in ft.yaml line 1; known are: .*safety_factor"):
        read("fault_tolerance: {zzz: 3}\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rank_heartbeat_timeout: '60s'", "rank_heartbeat_timeout in ft.yaml line 2 is '60s': .*60"),
        (
            "rank_heartbeat_timeout: 1:30",
            "rank_heartbeat_timeout in ft.yaml line 2 is '1:30': give seconds as a number",
        ),
        ("rank_heartbeat_timeout: 1_0", "rank_heartbeat_timeout in ft.yaml line 2 is '1_0': give seconds as a number"),
        ("rank_heartbeat_timeout: 1_0.5", "rank_heartbeat_timeout in ft.yaml line 2 is '1_0.5': give seconds"),
        (
            "rank_heartbeat_timeout: 0x10",
            "rank_heartbeat_timeout in ft.yaml line 2 is '0x10': give seconds as a number",
        ),
        ("rank_section_timeouts: {step: 1:30}", "rank_section_timeouts in ft.yaml line 2 .*'1:30'"),
        ("rank_heartbeat_timeout: -1", "rank_heartbeat_timeout in ft.yaml line 2 is -1: .*above 0"),
        ("rank_heartbeat_timeout: .nan", "rank_heartbeat_timeout in ft.yaml line 2 is .nan: "),
        ("rank_heartbeat_timeout: .inf", "rank_heartbeat_timeout in ft.yaml line 2 is .inf: .*null for no limit"),
        ("rank_heartbeat_timeout: yes", "rank_heartbeat_timeout in ft.yaml line 2 is yes: give seconds"),
        ("rank_heartbeat_timeout: False", "rank_heartbeat_timeout in ft.yaml line 2 is False: give seconds"),
        ("safety_factor:", "safety_factor in ft.yaml line 2 is null: give a number"),
        ("rank_heartbeat_timeout: [1]", r"rank_heartbeat_timeout in ft.yaml line 2 is \[1\]"),
        (
            "rank_heartbeat_timeout: 2024-01-01",
            "rank_heartbeat_timeout in ft.yaml line 2 is '2024-01-01': give seconds",
        ),
        ("rank_section_timeouts: [step]", r"rank_section_timeouts in ft.yaml line 2 is \[step\]: give each"),
        (
            "rank_section_timeouts: {step: yes}",
            r"rank_section_timeouts in ft.yaml line 2 is \{step: yes\}: section 'step' is 'yes': give seconds",
        ),
        (
            "rank_section_timeouts:\n    setup: 3\n    step: 2024-01-01",
            r"ft.yaml line 2 is setup: 3 step: 2024-01-01: section 'step' is '2024-01-01': give seconds",
        ),
        (
            "rank_section_timeouts: {1: 2}",
            "rank_section_timeouts in ft.yaml line 2 is .1: 2.: 1 is not a section's name",
        ),
        ("rank_termination_signal: SIGKIL", "rank_termination_signal in ft.yaml line 2 .*did you mean 'SIGKILL'"),
        ("rank_heartbeat_timeout: !!python/object:os.system {}", "ft.yaml line 2 .*could not determine"),
        ("rank_heartbeat_timeout: 2024-99-99", "ft.yaml line 2 is '2024-99-99': give seconds"),
        ("yes: 3", "unknown key 'yes' in ft.yaml line 2"),
        ("2024-01-01: 3", "unknown key '2024-01-01' in ft.yaml line 2"),
        ("? [a, b]\n  : 3", r"^ft.yaml line 2 has a list for a key: \[a, b\]; write a name there, as in 'rank_"),
        ("? {a: b}\n  : 3", r"^ft.yaml line 2 has a mapping for a key: \{a: b\}; write a name there, as in 'rank_"),
        ("rank_section_timeouts:\n    ? [step]\n    : 3", r"ft.yaml line 3 has a list for a key: \[step\]; write"),
        ("<<: {? [a] : 3}", r"^ft.yaml line 2 has a list for a key: \[a\]; write"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_place(read: Read, line: str, message: str):
    with pytest.raises(ConfigError, match=message):
        read(f"fault_tolerance:\n  {line}\n")


@pytest.mark.parametrize(
    ("text", "seconds"), [("0600", 600.0), ("600", 600.0), ("+7", 7.0), ("1e3", 1000.0), ("1.5e+2", 150.0), (".5", 0.5)]
)
def test_a_number_means_the_same_in_a_file_as_on_the_command_line(read: Read, text: str, seconds: float):
    # YAML 1.1 takes 0600 for an octal number.
    assert read(f"fault_tolerance:\n  rank_heartbeat_timeout: {text}\n").rank_heartbeat_timeout == seconds
    from_text = FaultToleranceConfig(rank_heartbeat_timeout=text)  # type: ignore[arg-type]
    assert from_text.rank_heartbeat_timeout == seconds


@pytest.mark.parametrize(
    "line",
    [
        f"max_no_progress_cycles: {'9' * 300}",
        f"max_no_progress_cycles: {'9' * 5000}",
        f"rank_section_timeouts: {{step: {'9' * 5000}}}",
        f"rank_section_timeouts: {{{'s' * 900}: x}}",
        f"learned_limits: {'a' * 5000}",
        f"{'k' * 900}: 3",
        f"? [{'k' * 5000}]\n  : 3",
    ],
)
def test_a_long_value_is_shortened(read: Read, line: str):
    with pytest.raises(ConfigError, match=r"[0-9] characters\)") as raised:
        read(f"fault_tolerance:\n  {line}\n")
    assert "ft.yaml line 2" in str(raised.value)
    assert len(str(raised.value)) < 3000


def test_a_url_is_redacted_before_it_is_shortened(read: Read):
    with pytest.raises(ConfigError) as raised:
        read(f"fault_tolerance:\n  rank_heartbeat_timeout: [{'x' * 130}, 'https://me:{'secret' * 50}@host/secret']\n")
    assert "secret" not in str(raised.value)


def test_words_and_dates_are_text_where_nothing_is_true_or_false(read: Read):
    config = read("fault_tolerance:\n  rank_section_timeouts: {on: 3}\n  run_dir: 2024-01-01\n  load_plugins: no\n")
    assert (config.rank_section_timeouts, config.run_dir, config.load_plugins) == ({"on": 3.0}, "2024-01-01", False)


def test_a_key_twice_is_refused(read: Read):
    with pytest.raises(ConfigError, match=r"key 'safety_factor' stands twice in ft.yaml, in lines 2 and 4"):
        read("fault_tolerance:\n  safety_factor: 5\n  log_level: 10\n  safety_factor: 6\n")


def test_a_section_name_twice_is_refused(read: Read):
    with pytest.raises(ConfigError, match=r"key 'step' stands twice in ft.yaml, in lines 3 and 4"):
        read("fault_tolerance:\n  rank_section_timeouts:\n    step: 5\n    step: 6\n")


@pytest.mark.parametrize(
    "text",
    [
        "fault_tolerance: {}\na:\n  fault_tolerance: {}\n",
        "fault_tolerance: {}\n\nfault_tolerance: {}\n",
        "{a: {fault_tolerance: {}},\n\nfault_tolerance: {}}\n",
    ],
)
def test_two_sections_name_both_places(read: Read, text: str):
    with pytest.raises(ConfigError, match=r"ft.yaml has 2 sections 'fault_tolerance', in lines 1 and 3"):
        read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ft.yaml is empty; expected a section 'fault_tolerance:'"),
        ("# nothing\n", "ft.yaml is empty"),
        ("\n- a\n", "ft.yaml line 2 begins a list; expected a section 'fault_tolerance:'"),
        ("word", "ft.yaml line 1 begins a single value"),
        (
            "model: {}\nfault_tolerence: {}\n",
            "ft.yaml has no section 'fault_tolerance'; rename 'fault_tolerence' in line 2 to 'fault_tolerance'$",
        ),
        ("model: {}\n", "ft.yaml has no section 'fault_tolerance'$"),
        ("fault_tolerance: [a]\n", "'fault_tolerance' in ft.yaml line 1 is a list"),
        ("fault_tolerance: 3\n", "'fault_tolerance' in ft.yaml line 1 is a single value"),
        ("a: 1\nb: [\n", "ft.yaml line 3 is not valid YAML"),
        ("a: b: c\n", "ft.yaml line 1 is not valid YAML"),
        ("a: 1\n---\nb: 2\n", "ft.yaml line 2 is not valid YAML: a second document begins there; give one document"),
        ("a: *nowhere\n", "ft.yaml line 1 is not valid YAML: found undefined alias"),
        ("a: \x07\n", "ft.yaml is not valid YAML"),
        ("[" * 5000, "ft.yaml is nested too deeply"),
    ],
)
def test_a_file_that_is_no_configuration(read: Read, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_a_missing_file_names_its_neighbour(read: Read):
    read("fault_tolerance:\n")
    with pytest.raises(ConfigError, match=r"file tf.yaml does not exist; did you mean 'ft.yaml'"):
        FaultToleranceConfig.from_yaml_file("tf.yaml")


def test_a_file_that_never_ends_is_no_configuration():
    """It would be read until no memory is left."""
    with pytest.raises(ConfigError, match=r"/dev/zero has more than 1 MB, which is more than any; name a"):
        FaultToleranceConfig.from_yaml_file("/dev/zero")


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"does not exist .*neither does the folder"):
        FaultToleranceConfig.from_yaml_file(tmp_path / "nowhere" / "ft.yaml")


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"is a folder"):
        FaultToleranceConfig.from_yaml_file(tmp_path)


def test_a_file_that_is_not_text(tmp_path: Path):
    (tmp_path / "ft.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 3\)"):
        FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml")


def test_a_file_that_cannot_be_read():
    """A file that opens and then gives an error, whoever asks: the first page of a process's memory."""
    with pytest.raises(ConfigError, match=r"/proc/self/mem cannot be read: Input/output error"):
        FaultToleranceConfig.from_yaml_file("/proc/self/mem")


def test_a_configuration_of_nvidia_resiliency_ext_loads_with_one_warning_a_key(read: Read):
    foreign = [*IGNORED_KEYS, "attribution_endpoint"]
    lines = [f"  {key}: anything" for key in foreign]
    config = read("\n".join(["fault_tolerance:", "  rank_heartbeat_timeout: 12", *lines]))
    assert config.rank_heartbeat_timeout == 12.0
    assert len(config.warnings) == len(foreign)
    for number, (key, warning) in enumerate(zip(foreign, config.warnings, strict=True), start=3):
        assert warning.startswith(f"key '{key}' in ft.yaml line {number} is ignored: ")


def test_its_keys_with_a_meaning_here_all_work(read: Read):
    config = read(
        """
fault_tolerance:
  initial_rank_heartbeat_timeout: 1
  rank_heartbeat_timeout: 2
  rank_section_timeouts: {setup: 3}
  rank_out_of_section_timeout: 4
  safety_factor: 5.5
  rank_termination_signal: SIGUSR1
  log_level: DEBUG
  num_warmup_iterations: 7
  install_exception_hook: true
  checkpoint_iteration_file: latest.txt
  max_no_progress_cycles: 8
  min_progress_iterations: 9
"""
    )
    assert config.warnings == ()
    assert (config.initial_rank_heartbeat_timeout, config.rank_heartbeat_timeout) == (1.0, 2.0)
    assert (config.rank_section_timeouts, config.rank_out_of_section_timeout) == ({"setup": 3.0}, 4.0)
    assert (config.safety_factor, config.rank_termination_signal.name) == (5.5, "SIGUSR1")
    assert (config.log_level, config.num_warmup_iterations, config.install_exception_hook) == (10, 7, True)
    assert (config.checkpoint_iteration_file, config.max_no_progress_cycles) == ("latest.txt", 8)
    assert config.min_progress_iterations == 9

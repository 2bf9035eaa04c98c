from __future__ import annotations

from pathlib import Path

import pytest

from drumline_contract import ExitCode
from drumline_contract.config import ConfigError
from drumline_trainer.__main__ import configured, main


def test_what_is_printed_is_a_file_of_the_same_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, printed = tmp_path / "few.json", tmp_path / "run.json"
    file.write_text('{"steps": 7}')
    settings = ["optimizer.beta2=0.98", "lora.rank=8"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["config", "--config", str(file), "--preset", "small", *words]) == ExitCode.OK
    printed.write_text(capsys.readouterr().out)
    asked = configured(file, preset="small", settings=settings)
    assert configured(printed, preset=None, settings=[]) == asked
    assert '"norm_epsilon": 1e-05' in printed.read_text()  # defaults too


def test_what_cannot_work_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "optimizer.beta3=1"]) == ExitCode.CONFIG
    printed = capsys.readouterr()
    assert (printed.out, "did you mean 'beta" in printed.err) == ("", True)


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"optimizer": {"lr": 0.1, "beta2": 0.9, "lr": 0.2}}')
    with pytest.raises(ConfigError, match=r"run\.json: the key 'lr' is written twice"):
        configured(file, preset=None, settings=[])
    with pytest.raises(ConfigError, match=r"^--set lora=.*the key 'rank' is written twice"):
        configured(None, preset=None, settings=['lora={"rank": 4, "rank": 8}'])


def test_a_configuration_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"run\.json: "):
        configured(file, preset=None, settings=[])

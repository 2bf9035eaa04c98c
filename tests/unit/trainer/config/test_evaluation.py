"""The sections `evaluation` and `checkpoint`: prompts and exports."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import ConfigError, EvaluationConfig, TrainerConfig


def test_a_prompt_is_a_line_that_is_not_empty() -> None:
    assert EvaluationConfig(prompts="Two?\n\n  \nYes, or no?\n").prompt_lines == (
        "Two?",
        "Yes, or no?",
    )
    assert EvaluationConfig().prompt_lines == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation": {"prompts": "\n"}}, r"evaluation\.prompts"),
        ({"evaluation": {"prompts": "a\n" * 17}}, r"evaluation\.prompts.* 17"),
        ({"evaluation": {"prompts": "a", "prompt_tokens": 0}}, r"evaluation\.prompt_tokens"),
        ({"evaluation": {"prompts": "a", "prompt_tokens": 5000}}, r"evaluation\.prompt_tokens"),
        ({"checkpoint": {"every_steps": 10, "export_every_steps": 15}}, "export_every_steps: 15"),
        ({"checkpoint": {"export_every_steps": 0}}, "export_every_steps"),
        ({"checkpoint": {"export_keep": 0}}, r"checkpoint\.export_keep"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainerConfig.from_dict(changes)

"""Variables of a job: what stands in its spec, and what does not."""

from __future__ import annotations

import argparse

import pytest

from drumline_api.podtemplate import PodTemplate
from drumline_cli.arguments import parser
from drumline_cli.errors import BadInput
from drumline_cli.run.manifests import job_manifest
from drumline_cli.run.request import run_request
from drumline_cli.run.terminal import shell_manifest, shell_request
from drumline_cli.run.variables import from_keys, values_of, whole_secrets

ENVIRONMENT = {"DRUMLINE_IMAGE": "any:1", "HF_TOKEN": "hf_abcdefghijkl", "SEED": "7"}
SOURCES = (
    *("--secret", "tokens=HF_TOKEN", "--secret", "wandb=api-key:WANDB_API_KEY"),
    *("--env-from", "secret/wandb=WANDB_", "--env-from", "configmap/site=SITE_"),
    *("--pull-secret", "registry"),
)


def chosen(command: str, *words: str) -> argparse.Namespace:
    options = parser("drumline").parse_args([command, "-q", "research", *words])
    options.command_line = ["python", "train.py"] if command == "run" else []
    return options


@pytest.mark.parametrize("command", ["run", "shell"])
def test_secrets_become_references_that_the_api_takes(command: str) -> None:
    options = chosen(command, *SOURCES, "-e", "SEED")
    if command == "run":
        request = run_request(options, ENVIRONMENT, queue="q", namespace=None, letters="a")
        template = job_manifest(request, None)["spec"]["template"]
    else:
        request = shell_request(options, ENVIRONMENT, queue="q", letters="a")
        template = shell_manifest(request, idle_seconds=60)["spec"]["template"]
    read = PodTemplate.model_validate(template)
    env = {each.name: each for each in read.env or []}
    assert env["SEED"].value == "7"
    refs = {
        name: (source.secret_key_ref.name, source.secret_key_ref.key)
        for name, each in env.items()
        if (source := each.value_from) is not None and source.secret_key_ref is not None
    }
    assert refs == {"HF_TOKEN": ("tokens", "HF_TOKEN"), "WANDB_API_KEY": ("wandb", "api-key")}
    assert [each.prefix for each in read.env_from or []] == ["WANDB_", "SITE_"]
    assert read.image_pull_secrets == ["registry"]
    assert "hf_abcdefghijkl" not in str(template)


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("HF_TOKEN", True),
        ("HF_TOKEN=x", True),
        ("WANDB_API_KEY=x", True),
        ("MY_PASSWORD=x", True),
        ("PLAIN=hf_abcdefghijkl", True),
        ("SEED", False),
        ("TOKENIZERS_PARALLELISM=false", False),
        ("MONKEY=1", False),
        ("KEYBOARD=1", False),
    ],
)
def test_a_value_that_looks_like_a_secret_is_warned_about(text: str, *, is_secret: bool) -> None:
    ((name, _),), warnings = values_of([text], ENVIRONMENT)
    assert bool(warnings) is is_secret
    assert all(f"--secret tokens={name}" in warning for warning in warnings)
    assert not any("hf_abcdefghijkl" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-e", "NOT_SET"), "this shell has no variable NOT_SET"),
        (("-e", "1A=x"), "want NAME=VALUE"),
        (("--secret", "HF_TOKEN"), "not a valid object name"),
        (("--secret", "tokens=api-key"), "tokens=api-key:VARIABLE"),
        (("--secret", "tokens="), "tokens=KEY:VARIABLE"),
        (("--secret", "a=X", "--secret", "b=X"), "gives X twice"),
        (("--env-from", "wandb"), "secret/wandb=WANDB_"),
        (("--env-from", "secret/wandb"), "secret/wandb=WANDB_"),
        (("--env-from", "pod/wandb=A"), "want secret/NAME=PREFIX"),
        (("--pull-secret", "A B"), "not a valid object name"),
    ],
)
def test_an_option_of_another_form_is_refused(words: tuple[str, ...], problem: str) -> None:
    options = chosen("run", *words)
    with pytest.raises(BadInput) as refused:
        run_request(options, ENVIRONMENT, queue="q", namespace=None, letters="a")
    assert problem in str(refused.value)


def test_all_keys_of_a_secret_become_variables() -> None:
    assert whole_secrets(chosen("run", "--secret", "tokens", "--secret", "a=B")) == ("tokens",)
    made = from_keys("tokens", ["B", "A"])
    assert [each["name"] for each in made] == ["A", "B"]
    for keys, problem in ((["not-a-name"], "tokens=not-a-name:VARIABLE"), ([], "no keys")):
        with pytest.raises(BadInput, match=problem):
            from_keys("tokens", keys)

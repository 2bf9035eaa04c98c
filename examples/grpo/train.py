"""GRPO with TRL on the ranks of a job, with completions from the generators beside them.

TRL's GRPOTrainer computes rewards, loss and step. Its `rollout_func` publishes the weights of the
step in a folder that all pods share, and posts the prompts to a generator (`generate.py`). The
request names the weights, so a restarted generator gives the same completions.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import AutoTokenizer, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

from drumline_client.adapters.huggingface import DrumlineCallback, newest_checkpoint

CONNECT_SECONDS, ANSWER_SECONDS = 5, 540
PATIENCE_SECONDS = 540
"""Less than `recovery.hangTimeoutSeconds` (600), after which ranks without progress restart."""
KEPT = 2
"""Number of published weights to keep. A generator may still load those of the previous step."""


@dataclass
class Arguments:
    """Arguments besides those of TRL's GRPOConfig, such as --max_steps and --num_generations."""

    model: str
    """Folder of a model and its tokenizer."""
    data: str
    """File of JSON lines with `prompt` (text or messages) and `answer`."""
    weights: str
    """Folder that the generators also read."""
    generators: str
    """HOST:PORT of each generator, separated by commas."""


def correct(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Reward completions that contain the answer. Replace it with your own."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [float(wanted in text) for text, wanted in zip(texts, answer, strict=True)]


class Rollout:
    """Completions of generators for TRL's `rollout_func`."""

    def __init__(self, arguments: Arguments) -> None:
        """Publish nothing yet."""
        self._weights = Path(arguments.weights)
        self._weights.mkdir(parents=True, exist_ok=True)
        self._generators = arguments.generators.split(",")
        self._published = (-1, "")

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return one completion of each prompt: TRL repeats a prompt for each of its group."""
        step, rank = trainer.state.global_step, trainer.accelerator.process_index
        if self._published[0] != step:
            self._published = (step, self._publish(trainer))
        tokenizer, config = trainer.processing_class, trainer.args
        tokens = [
            tokenizer(prompt)["input_ids"]
            if isinstance(prompt, str)
            else tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=False
            )
            for prompt in prompts
        ]
        request = {
            "weights": self._published[1],
            "prompts": tokens,
            "seed": 1_000_003 * step + rank,
            "temperature": config.temperature,
            "max_new_tokens": config.max_completion_length,
            "pad": tokenizer.pad_token_id,
            "eos": [tokenizer.eos_token_id],
        }
        completions, generator = self._ask(request, first=rank)
        print(f"rollout of step {step} by {generator}", flush=True)
        return {"prompt_ids": tokens, "completion_ids": completions, "logprobs": None}

    def _publish(self, trainer: GRPOTrainer) -> str:
        """Write the present weights. Return their name on all ranks."""
        accelerator = trainer.accelerator
        state = accelerator.get_state_dict(trainer.model)  # under FSDP, ranks take part in it
        # The name is unique, because a repeated step after a restart may have other weights.
        name = f"step-{trainer.state.global_step}-{uuid.uuid4().hex[:8]}"
        if accelerator.is_main_process:
            draft = self._weights / f".{name}"
            accelerator.unwrap_model(trainer.model).save_pretrained(draft, state_dict=state)
            draft.rename(self._weights / name)
            published = sorted(self._weights.glob("step-*"), key=lambda path: path.stat().st_mtime)
            for old in published[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return broadcast_object_list([name])[0]

    def _ask(self, request: dict[str, Any], *, first: int) -> tuple[list[list[int]], str]:
        """Post to the generators in turn, until one answers."""
        body, deadline = json.dumps(request), time.monotonic() + PATIENCE_SECONDS
        for attempt in itertools.count(first):
            generator = self._generators[attempt % len(self._generators)]
            try:
                return _post(generator, body), generator
            except (OSError, HTTPException) as error:
                print(f"no completions from {generator}: {error}", flush=True)
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
        raise AssertionError


def _post(generator: str, body: str) -> list[list[int]]:
    connection = HTTPConnection(generator, timeout=CONNECT_SECONDS)
    try:
        connection.connect()
        connection.sock.settimeout(ANSWER_SECONDS)
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        raise HTTPException(f"{answer.status} {text[:200]}")
    return json.loads(text)


def main() -> None:
    """Train, from the newest complete checkpoint if there is one."""
    arguments, config = HfArgumentParser((Arguments, GRPOConfig)).parse_args_into_dataclasses()
    lines = Path(arguments.data).read_text().splitlines()
    trainer = GRPOTrainer(
        model=arguments.model,
        reward_funcs=correct,
        args=config,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=AutoTokenizer.from_pretrained(arguments.model),
        rollout_func=Rollout(arguments),
        callbacks=[DrumlineCallback()],
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(config.output_dir))
    trainer.save_model()


if __name__ == "__main__":
    main()

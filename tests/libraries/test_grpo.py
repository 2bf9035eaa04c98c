"""Run examples/grpo: TRL's GRPO on ranks under real agents, with generators.

One run is undisturbed. In another run the test kills both generators and a rank. Losses, rewards
and weights of both runs are equal bit by bit. So each completion used the weights of its step.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("trl", reason="make test-all WHAT=libraries")

import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang
from tests.patience import HANG_SECONDS

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "grpo"
JOB: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "grpo.yaml").read_text())["spec"]
LETTERS = "abcdefgh"
STEPS, SAVED_EVERY = 12, 3
SETTINGS = {
    "max_steps": STEPS,
    "save_steps": SAVED_EVERY,
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "max_completion_length": 4,
    "learning_rate": 0.02,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


def write_inputs(folder: Path) -> None:
    """Write prompts and a tiny model with random weights. Each token is a letter."""
    marks = {"pad_token": "<pad>", "eos_token": "<eos>"}
    vocabulary = {token: number for number, token in enumerate([*marks.values(), *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, marks["pad_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    whole.save_pretrained(folder / "model")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    # After a resume in a later epoch, the Trainer would use the order of the first epoch.
    pairs = itertools.product(LETTERS, repeat=2)
    lines = [{"prompt": "".join(pair), "answer": "a"} for pair in pairs]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))


class Gate:
    """A limit on the requests that reach the generators. It holds all further requests."""

    def __init__(self, *, limit: float) -> None:
        self._limit, self._passed, self._held = limit, 0, 0
        self._changed = asyncio.Condition()

    async def open(self, limit: float) -> None:
        async with self._changed:
            self._limit = limit
            self._changed.notify_all()

    async def until_held(self, count: int) -> None:
        async with asyncio.timeout(HANG_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self._held == count)

    async def admit(self) -> None:
        async with self._changed:
            self._held += 1
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._passed < self._limit)
            self._held -= 1
            self._passed += 1

    def not_answered(self) -> None:
        self._passed -= 1


@dataclass(kw_only=True)
class GeneratorPod:
    """A pod of the role. A separate shell runs the command of the example."""

    shell: asyncio.subprocess.Process
    port: int
    gate: Gate
    server: asyncio.Server | None = None

    async def until_ready(self) -> None:
        assert self.shell.stdout is not None
        async with asyncio.timeout(HANG_SECONDS):
            while "ready" not in (line := (await self.shell.stdout.readline()).decode()):
                assert line, "the generator ended"

    def kill_program(self) -> None:
        """Kill only the Python process, like the kernel when memory runs out."""
        children = Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children").read_text()
        (program,) = map(int, children.split())
        os.kill(program, signal.SIGKILL)

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one request and its answer. Close the connection if no generator runs."""
        await self.gate.admit()
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.port)
            sending = asyncio.create_task(copied(reader, to_there))
            await copied(there, writer)
            sending.cancel()
            to_there.close()
        except ConnectionError:  # the generator does not run, or has ended
            self.gate.not_answered()
        writer.close()


async def copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


@asynccontextmanager
async def generators(folder: Path, count: int, gate: Gate) -> AsyncIterator[list[GeneratorPod]]:
    """Start the pods of the role, and wait until they can answer."""
    (role,) = JOB["roles"]
    shell, option, script = role["command"]
    script = script.replace("/runs/code", str(PROGRAMS)).replace("python3", sys.executable)
    script = script.replace("/runs/grpo", str(folder))
    pods: list[GeneratorPod] = []
    try:
        for _ in range(count):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            here = script.replace("generate.py", f"generate.py --address=127.0.0.1 --port={port}")
            process = await asyncio.create_subprocess_exec(
                shell,
                option,
                here,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            pod = GeneratorPod(shell=process, port=port, gate=gate)
            pods.append(pod)
            pod.server = await asyncio.start_server(pod.pass_on, "127.0.0.1", 0)
        for pod in pods:
            await pod.until_ready()
        yield pods
    finally:
        for pod in pods:
            os.killpg(pod.shell.pid, signal.SIGKILL)
            await pod.shell.wait()
            if pod.server is not None:
                pod.server.close()


@asynccontextmanager
async def trainers(folder: Path, pods: list[GeneratorPod]) -> AsyncIterator[Gang]:
    """Start two pods under agents, each with one rank."""
    write_inputs(folder)
    places = {
        "model": folder / "model",
        "data": folder / "prompts.jsonl",
        "weights": folder / "weights",
        "output_dir": folder / "checkpoints",
        "generators": ",".join(
            f"127.0.0.1:{pod.server.sockets[0].getsockname()[1]}" for pod in pods if pod.server
        ),
    }
    words = [f"--{name}={value}" for name, value in (places | SETTINGS).items()]
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / "train.py"), *words]
    gang = Gang(CommandBand(folder=folder, command=command))
    try:
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        await start_commands(gang, 2, script="", **variables)
        yield gang
    finally:
        await gang.band.stop()


def result(folder: Path) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Return losses and rewards by step, and the final weights."""
    last = folder / "checkpoints" / f"checkpoint-{STEPS}"
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    figures = [{name: row[name] for name in ("loss", "reward")} for row in history if "loss" in row]
    return figures, load_file(folder / "checkpoints" / "model.safetensors")


async def test_generators_and_ranks_are_killed_alone_and_the_result_is_the_same(
    tmp_path: Path,
) -> None:
    calm, struck = tmp_path / "calm", tmp_path / "struck"
    for folder in (calm, struck):
        folder.mkdir()
    gate = Gate(limit=math.inf)
    async with generators(calm, 1, gate) as pods, trainers(calm, pods) as gang:
        assert await gang.ended() == [0, 0], gang.leader.text

    gate = Gate(limit=2 * 4)  # both ranks have the completions of steps 0 to 3
    async with generators(struck, 2, gate) as pods, trainers(struck, pods) as gang:
        pids = await gang.pids()
        await gate.until_held(2)
        # 1. Kill both generators. The ranks wait, and the loops in the pods restart the generators.
        for pod in pods:
            pod.kill_program()
        await gate.open(2 * 8)
        await gang.leader.until_line("no completions")
        await asyncio.gather(*(pod.until_ready() for pod in pods))
        await gate.until_held(2)
        assert gang.leader.events("incident") == []
        # 2. Kill a rank. Both ranks restart in their pods, and the generators answer them.
        os.kill(pids[1], signal.SIGKILL)
        await gate.open(math.inf)
        incident = await gang.incident()
        assert (incident["culprit_rank"], incident["restored_step"]) == (1, 6)
        assert await gang.ended() == [0, 0], gang.leader.text
        assert all(pod.shell.returncode is None for pod in pods)

    figures, weights = result(calm)
    again, weights_again = result(struck)
    assert again == figures
    assert weights.keys() == weights_again.keys()
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    rewards = [row["reward"] for row in figures]
    assert len(rewards) == STEPS
    assert sum(rewards[-3:]) > sum(
        rewards[:3]
    )  # training succeeds, so the generators use new weights

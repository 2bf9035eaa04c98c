"""Continue fixed prompts while a model trains: a look at it beside the held-out loss.

Every rank passes the same tokens through the layout that trains, and takes the likeliest token each
time. Nothing is cached, so a token costs a pass over all before it. Prompts share a pass if a
micro-batch holds them. The number of passes does not depend on what is answered: with fsdp they are
collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from drumline_contract.config import ConfigError, EvaluationConfig, Family, TrainerConfig
from drumline_trainer.data.codec import Codec, codec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAnswers:
    """The prompts of a run as tokens."""

    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    codec: Codec
    most: int
    """Tokens of an answer."""
    window: int | None
    """Positions that the model knows. None: any number."""
    batch_tokens: int
    """Tokens of a micro-batch, which fit the device."""
    device: torch.device

    @classmethod
    def of(cls, config: TrainerConfig, *, device: torch.device) -> PromptAnswers:
        """Encode them, as a user's words if the model has a chat template.

        Raises:
            ConfigError: the tokenizer or the template cannot be read, or a prompt has no token.
        """
        if config.model.family is Family.VIT:
            raise ConfigError("evaluation.prompts: vit answers no text; leave them out")
        evaluation = config.evaluation or EvaluationConfig()
        prompts = evaluation.prompt_lines
        # The chat template is used if the model has one, as its users would.
        codec = codec_of(config, chat=None)
        tokens = tuple(tuple(codec.encode(prompt)) for prompt in prompts)
        # An empty prompt has no last position to predict from.
        if not all(tokens):
            raise ConfigError("evaluation.prompts: a prompt has no token; leave it out")
        return cls(
            prompts=prompts,
            tokens=tokens,
            codec=codec,
            most=evaluation.prompt_tokens,
            window=config.model.max_positions if config.model.family is Family.GPT2 else None,
            batch_tokens=(config.micro_batch_size or 1) * config.data.sequence_length,
            device=device,
        )

    @torch.no_grad()
    def answers(self, model: nn.Module) -> Iterator[tuple[str, str]]:
        """Return each prompt with what comes after it. Collective; the model is in evaluation."""
        for part in self._batches():
            seen = [list(self.tokens[number]) for number in part]
            # Always `most` passes: with fsdp every pass gathers weights, and all ranks must make
            # the same number.
            for _ in range(self.most):
                self._continue(seen, model)
            for number, tokens in zip(part, seen, strict=True):
                answer = tokens[len(self.tokens[number]) :]
                # The answer is cut at its stop token afterwards. Tokens behind it were computed in
                # vain.
                stop = next(
                    (n for n, token in enumerate(answer) if token in self.codec.stops), None
                )
                yield self.prompts[number], self.codec.decode(answer[:stop])

    def _batches(self) -> Iterator[list[int]]:
        """Yield groups of prompts whose passes fit a micro-batch, or single prompts."""
        part: list[int] = []
        longest = 0
        for number, tokens in enumerate(self.tokens):
            longest = max(longest, len(tokens) + self.most)
            if part and (len(part) + 1) * longest > self.batch_tokens:
                yield part
                part, longest = [], len(tokens) + self.most
            part.append(number)
        yield part

    def _continue(self, seen: list[list[int]], model: nn.Module) -> None:
        """Append to each row the likeliest token after it.

        Rows are padded on the right. No position looks at a later one, so padding changes nothing.
        """
        read = [tokens if self.window is None else tokens[-self.window :] for tokens in seen]
        length = max(map(len, read))
        padded = [tokens + [0] * (length - len(tokens)) for tokens in read]
        logits_BSV = model(torch.tensor(padded, device=self.device))
        last = torch.tensor([len(tokens) - 1 for tokens in read], device=self.device)
        rows = torch.arange(len(read), device=self.device)
        # The host reads the values, one wait for each pass. All ranks get the same tokens.
        chosen: list[int] = logits_BSV[rows, last].argmax(-1).tolist()
        for tokens, token in zip(seen, chosen, strict=True):
            tokens.append(token)

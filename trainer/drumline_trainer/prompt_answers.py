"""Continue fixed prompts while a model trains: a look at it beside the held-out loss.

Every rank passes the same tokens through the layout that trains, and takes the likeliest token each
time. Nothing is cached, so a token costs a pass over all before it. The number of passes does not
depend on what is answered: with fsdp they are collective.
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
            device=device,
        )

    @torch.no_grad()
    def answers(self, model: nn.Module) -> Iterator[tuple[str, str]]:
        """Return each prompt with what comes after it. Collective; the model is in evaluation."""
        for prompt, tokens in zip(self.prompts, self.tokens, strict=True):
            seen = list(tokens)
            # Always `most` passes: with fsdp every pass gathers weights, and all ranks must make
            # the same number.
            for _ in range(self.most):
                read = seen if self.window is None else seen[-self.window :]
                logits_BSV = model(torch.tensor([read], device=self.device))
                # argmax reads the value on the host, one wait for each token. All ranks get the
                # same token.
                seen.append(int(logits_BSV[0, -1].argmax()))
            answer = seen[len(tokens) :]
            # The answer is cut at its stop token afterwards. Tokens behind it were computed in
            # vain.
            stop = next((n for n, token in enumerate(answer) if token in self.codec.stops), None)
            yield prompt, self.codec.decode(answer[:stop])

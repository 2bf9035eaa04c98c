"""Answer prompts with the published weights that a request names (`train.py` publishes them).

The generator keeps no state besides the weights that it has loaded, so it can be killed and started
again at any time. It has no authentication. Only pods of the job should reach its port.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Generator:
    """A model with the weights of the last request."""

    def __init__(self, weights: Path) -> None:
        """Load nothing yet."""
        self._folder = weights
        self._loaded: tuple[str, PreTrainedModel] | None = None

    def complete(self, request: dict[str, Any]) -> list[list[int]]:
        """Return the tokens of one completion for each prompt, up to its end token.

        Raises:
            OSError: the weights do not exist.
        """
        model = self._model(request["weights"])
        prompts, pad = request["prompts"], request["pad"]
        width = max(map(len, prompts))
        rows = torch.tensor([[pad] * (width - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
        torch.manual_seed(request["seed"])
        with torch.inference_mode():
            made = model.generate(
                input_ids=rows.to(DEVICE),
                attention_mask=mask.to(DEVICE),
                do_sample=True,
                temperature=request["temperature"],
                max_new_tokens=request["max_new_tokens"],
                top_k=0,
                pad_token_id=pad,
                eos_token_id=request["eos"],
            )
        return [_until_end(row, request["eos"]) for row in made[:, width:].tolist()]

    def _model(self, name: str) -> PreTrainedModel:
        if self._loaded is None or self._loaded[0] != name:
            folder = self._folder / Path(name).name
            if not folder.is_dir():  # transformers would look for it on the Hub
                raise FileNotFoundError(f"no weights {folder}")
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
            self._loaded = (name, model.to(DEVICE).eval())
            print(f"loaded {name}", flush=True)
        return self._loaded[1]


def _until_end(row: list[int], ends: list[int]) -> list[int]:
    return row[: next((at for at, token in enumerate(row, 1) if token in ends), len(row))]


def main() -> None:
    """Answer one request after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    generator = Generator(arguments.weights)

    class Handler(BaseHTTPRequestHandler):
        timeout = 60

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status, answer = 200, json.dumps(generator.complete(json.loads(body)))
            except OSError as error:
                status, answer = 503, str(error)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())

    with HTTPServer((arguments.address, arguments.port), Handler) as server:
        print(f"ready on port {server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

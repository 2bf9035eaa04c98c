#!/usr/bin/env bash
# Sets up .venv from requirements.lock: every version and hash is pinned there. `setup.sh lock` resolves anew.
# Needs only a Python 3: uv is taken from PATH, else installed once into the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/drumline"

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

find_uv() {
  if command -v uv >/dev/null 2>&1; then command -v uv; return; fi
  if [ ! -x "$cache/uv/bin/uv" ]; then
    say "installing uv (about 5 s, once)" >&2
    python3 -m venv "$cache/uv" 2>/dev/null || {
      if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -qq -y python3-venv >/dev/null && python3 -m venv "$cache/uv"
      else
        echo "no uv, and python3 cannot make a virtual environment: install uv or python3-venv" >&2
        exit 1
      fi
    }
    "$cache/uv/bin/pip" install --quiet --disable-pip-version-check uv >&2
  fi
  echo "$cache/uv/bin/uv"
}

uv="$(find_uv)"
if [ "${1:-}" = lock ]; then
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-annotate --all-extras --group test --group lint pyproject.toml -o requirements.lock
fi
say "Python packages from requirements.lock (5 GB with torch; about 1 min when nothing is cached)"
[ -x .venv/bin/python ] || "$uv" venv --quiet --python 3.11 .venv
"$uv" pip sync --quiet --require-hashes requirements.lock
"$uv" pip install --quiet --no-deps --editable .
say "bytecode of what the trainer imports (about 20 s, once)"
# Pods mount these packages read-only: without it each would compile them anew, 8 s per start.
PYTHONDONTWRITEBYTECODE= PYTHONPATH=trainer .venv/bin/python -c "
import drumline_trainer.memory.recompute  # with torch's compiler, as FSDP2 and pipelines
import drumline_trainer.parallelism.data_parallel.fsdp
import drumline_trainer.parallelism.pipeline_parallel.pipeline
import drumline_trainer.rank"
touch .venv/.synced
say "ready: .venv"

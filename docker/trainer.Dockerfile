# The trainer: torch and its CUDA libraries, numpy, safetensors, what a run imports where its
# configuration asks for it (tokenizers, obstore, pillow, TensorBoard, W&B), drumline_trainer,
# the compiler with which torch makes kernels of `compile: blocks`, and the pip with which
# `drumline run --requirements` installs packages.
#
#   python -m tools.cluster context trainer DIR
#   docker build -f docker/trainer.Dockerfile -t drumline/trainer:0.1.0 DIR
# Needs the NVIDIA driver on the node (GPU Operator) and nothing else: the wheels bring CUDA and
# NCCL. With torch inside it has several GB: `make release` makes it so. The throwaway cluster builds
# it with an empty site/ and mounts this machine's own packages at /opt/site-packages, and without
# the packages (--build-arg DEBIAN_PACKAGES=). `make release` reads their names here.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}
ARG DEBIAN_PACKAGES="g++ python3-pip-whl"
RUN if [ -n "$DEBIAN_PACKAGES" ]; then apt-get update && apt-get install --yes --no-install-recommends $DEBIAN_PACKAGES && rm -rf /var/lib/apt/lists/*; fi
COPY site /opt/site-packages
COPY app /opt/drumline
ENV PYTHONPATH=/opt/drumline:/opt/site-packages \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "drumline_agent"]

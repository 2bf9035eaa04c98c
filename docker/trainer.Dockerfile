# The trainer: torch and its CUDA libraries, numpy, safetensors, what a run imports where its
# configuration asks for it (tokenizers, boto3, obstore, pillow, TensorBoard, W&B), and drumline_trainer.
#
#   python -m tests.cluster context trainer DIR
#   docker build -f docker/trainer.Dockerfile -t drumline/trainer:0.1.0 DIR
# Needs the NVIDIA driver on the node (GPU Operator) and nothing else: the wheels bring CUDA and
# NCCL. With torch inside it has several GB: `make release` makes it so. The throwaway cluster builds
# it with an empty site/ and mounts this machine's own packages at /opt/site-packages.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}
COPY site /opt/site-packages
COPY app /opt/drumline
ENV PYTHONPATH=/opt/drumline:/opt/site-packages \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "drumline_trainer.agent"]

# The operator, and the trainer's contract and planner that it reads. The same image joins a job
# of your own template to its gang: that part needs the standard library only.
#
# The build context has three folders, installed beforehand, so that building needs no network:
#   site/    the operator's dependencies, exactly as requirements.lock pins them
#   app/     the packages drumline and drumline_trainer
#   bundle/  the agent with a Python of its own (docker/bundle.py), which an init container copies
#            into pods of your own images
# `python -m tools.cluster context operator DIR` makes it; then
#   docker build -f docker/operator.Dockerfile -t drumline/operator:0.1.0 DIR
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}
# Dependencies change rarely: a layer of their own keeps a rebuild after a code change short.
COPY site /opt/site-packages
COPY bundle /opt/drumline-agent
COPY app /opt/drumline
ENV PYTHONPATH=/opt/drumline:/opt/site-packages \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "drumline"]

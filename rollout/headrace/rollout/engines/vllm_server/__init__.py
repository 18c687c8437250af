"""vLLM servers that run already: asked over HTTP, token ids in, token ids out."""

"""The engine: an OpenAI server process and a core process that batches continuously over a paged KV cache."""

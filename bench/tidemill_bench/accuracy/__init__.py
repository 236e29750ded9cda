"""What whole numbers cost beside bfloat16: perplexity and greedy agreement on a text."""

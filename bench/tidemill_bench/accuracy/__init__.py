"""What whole numbers instead of bfloat16 cost: perplexity and greedy agreement on a text in the public domain."""

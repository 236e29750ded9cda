"""Checks and measures everything of ours that needs a GPU: `python -m tidemill_bench.gpu_check`.

It needs torch, triton, transformers, msgspec and this source tree, and no network. On the CPU the same code
rehearses itself with tiny sizes and interpreted kernels; its figures then mean nothing.
"""

"""Triton kernels of a round. Modules here import triton; nothing else may import them unless the device is CUDA."""

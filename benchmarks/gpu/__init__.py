"""What needs a GPU: restarts of a training on CUDA, GPU memory after a kill, NVML, CUDA events and CUPTI."""

"""What is measured beside the sections: GPU time, kernels, the device, the host."""

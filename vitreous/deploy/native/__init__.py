"""CPU kernels for quantized and float32 linear layers and attention, compiled from C on the machine they run on."""

"""Files of sensors and errors of devices, as nvidia-smi, DCGM, the kernel and others write them."""

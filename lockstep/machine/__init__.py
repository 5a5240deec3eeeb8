"""What this machine is: devices, network, memory and versions."""

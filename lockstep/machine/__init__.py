"""Readers of this machine: devices, network, memory and versions."""

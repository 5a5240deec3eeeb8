"""Alternatives side by side: settings, values of a factor, kinds of device."""

"""Data sets in a shared folder, and how a DataLoader over them is measured."""

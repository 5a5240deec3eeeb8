"""What other programs keep of results: runs in a tracker, and files in their formats."""

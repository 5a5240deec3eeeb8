"""What the operating system is asked for: files, locks, commands, this host, variables."""

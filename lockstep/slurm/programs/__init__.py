"""What programs of others print, read as data: a module for each place where it is read."""

"""A batch script as a reader sees it: words, commands, directives, options."""

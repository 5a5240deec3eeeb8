"""What is asked of a machine, a site and scripts before anything is measured."""

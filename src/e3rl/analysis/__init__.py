"""From run folders to tables and figures; needs neither torch nor lightning."""

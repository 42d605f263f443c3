"""The `graft` command, a file per noun. Starts workers as processes and never imports them."""

"""Jobs: each file's get_config(words) gives focalgeo.config.default_config() and what differs from it."""

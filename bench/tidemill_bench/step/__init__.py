"""Where the time of one step goes, and what this machine could do at best."""

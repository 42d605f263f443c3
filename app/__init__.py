"""The service: HTTP, rules, database and bus. It never imports torch or the workers."""

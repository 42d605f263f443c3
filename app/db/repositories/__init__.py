"""All SQL of the service, a file per resource. Functions take a session and, first of all, the tenant who asks.

They never commit: the caller's transaction decides. A row of another tenant does not exist here.
"""

"""One file per migration, applied in the order of their `down_revision`."""

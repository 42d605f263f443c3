"""Why a model cannot be written in a format."""


class ExportError(ValueError):
    """The format has no place for this model; the message names what."""

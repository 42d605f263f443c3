"""How an adapter file is refused. Knows nothing of files."""


class AdapterFormatError(ValueError):
    """An adapter that cannot be used; `tensor` names the tensor or module at fault, when there is one."""

    def __init__(self, message: str, tensor: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.tensor = tensor

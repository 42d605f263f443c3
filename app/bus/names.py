"""The names of all keys, in one place, and how long a forgotten one lives."""

KEPT_SECONDS = 600


def requests(base_model: str) -> str:
    """List of inference requests that wait for a worker of the base model."""
    return f"graft:requests:{base_model}"


def wakeups(base_model: str) -> str:
    """List of wake-ups for workers of the base model."""
    return f"graft:wakeups:{base_model}"


def presence(base_model: str) -> str:
    """Key that lives while some worker of the base model does."""
    return f"graft:presence:{base_model}"


def ended(job_id: str) -> str:
    """Stream with an entry once the job has ended."""
    return f"graft:ended:{job_id}"


def events(request_id: str) -> str:
    """Stream of an inference request's events."""
    return f"graft:events:{request_id}"


def abort(request_id: str) -> str:
    """Key that exists once nobody waits for the request any more."""
    return f"graft:abort:{request_id}"

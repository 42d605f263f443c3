"""The names of all keys, in one place, and how long a forgotten one lives. A base model's id holds no colon."""

KEPT_SECONDS = 600


def requests(base_model: str) -> str:
    """List of inference requests that wait for any worker of the base model."""
    return f"graft:requests:{base_model}"


def own_requests(base_model: str, worker_id: str) -> str:
    """List of inference requests that wait for one worker, which holds their adapter."""
    return f"{requests(base_model)}:{worker_id}"


def wakeups(base_model: str) -> str:
    """List of wake-ups for workers of the base model."""
    return f"graft:wakeups:{base_model}"


def presence(base_model: str) -> str:
    """Sorted set of the base model's workers by the time, in ms of the server's clock, until which each is present."""
    return f"graft:presence:{base_model}"


def left(worker_id: str) -> str:
    """Key that exists once the worker has left: a late announcement of its other thread counts for nothing."""
    return f"graft:left:{worker_id}"


def load(base_model: str) -> str:
    """Hash of the base model's workers: requests they have open, less those they run at once."""
    return f"graft:load:{base_model}"


def held(base_model: str, worker_id: str) -> str:
    """Set of the adapter versions that a worker holds."""
    return f"graft:held:{base_model}:{worker_id}"


def ended(job_id: str) -> str:
    """Stream with an entry once the job has ended."""
    return f"graft:ended:{job_id}"


def events(request_id: str) -> str:
    """Stream of an inference request's events."""
    return f"graft:events:{request_id}"


def taker(request_id: str) -> str:
    """Key that names the worker which has taken the request, and its base model."""
    return f"graft:taker:{request_id}"


def abort(request_id: str) -> str:
    """Key that exists once nobody waits for the request any more."""
    return f"graft:abort:{request_id}"

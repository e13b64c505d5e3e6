"""One run on a Ray cluster. The only file that imports ray.

Ray Data hands items to actors, starts anew what dies, and tells how far they are. What was lost on
the way is told by the parts that aren't there: its items are tried again, fewer at a time, at last
each alone in a process, and one that takes its process down every time is a failure.
"""

import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from argus_cli import errors
from argus_cli.cluster.parts import Parts
from argus_cli.cluster.places import Item
from argus_cli.errors import ArgusError, UsageError
from argus_cli.output.lines import to_record
from argus_cli.schema import Failure

if TYPE_CHECKING:
    from argus_cli.cluster.actors import CaptionActor

TRIES = 3
MOST_CPUS = 8  # of an actor: more threads make a picture little faster

_SENT = ("name", "at", "row", "bytes", "mtime_ns")  # of an item


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Within, Ray is connected; "local" is a cluster of this machine alone. Raises UsageError."""
    if find_spec("ray") is None:
        raise UsageError("--ray: Ray isn't installed; pip install 'argus-vlm[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # argus has no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # stderr is ours
    import ray

    connected = ray.is_initialized()
    if not connected:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            quiet["include_dashboard"] = False
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"--ray {address}: no cluster answers ({reason})") from None
    try:
        yield
    finally:
        if not connected:
            ray.shutdown()


def cpus_of_an_actor() -> int:
    """What every machine of the cluster can give to one."""
    import ray

    machines = [m["Resources"].get("CPU", 0) for m in ray.nodes() if m["Alive"]]
    return max(1, min(MOST_CPUS, int(min((cpus for cpus in machines if cpus), default=1))))


def run_on_cluster(
    actor: "CaptionActor", items: Sequence[Item], parts: Parts
) -> Iterator[Failure | Item]:
    """Each item, or its failure, as its part is written; in no order.

    Raises ArgusError when the model or OUT fails, not for a single input.
    """
    left = {item.name: item for item in items}
    size = min(128, max(32, len(items) // 2000))
    # What dies with an actor goes into smaller parts, and in the end alone into its process.
    for rows, tries in ((size, 1), (size // 8, 1), (1, TRIES)):
        if not left:
            break
        for record in _told(actor, list(left.values()), parts, rows, tries):
            if record["path"] is None:
                raise getattr(errors, record["error"]["type"])(record["error"]["message"])
            if item := left.pop(record["path"], None):
                yield _result(item, record["error"])
        for path, known in parts.index(parts.run).items():  # written, but nobody was told
            if item := left.pop(path, None):
                yield _result(item, known.error)
    lost = [
        Failure(
            item.name, "ProcessError",
            f"{item.name}: took its process down {TRIES} times", item.bytes, item.mtime_ns,
        )
        for item in left.values()
    ]  # fmt: skip
    if lost:
        parts.write(parts.name(left), [to_record(failure) for failure in lost])
    yield from lost
    parts.prune()


def _result(item: Item, error: dict[str, str] | None) -> Failure | Item:
    return Failure(item.name, error["type"], error["message"]) if error else item


def _told(
    actor: "CaptionActor", items: Sequence[Item], parts: Parts, rows: int, tries: int
) -> Iterator[dict[str, Any]]:
    """What the actors tell of the items, of which ``rows`` make a part; not of what is lost."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.exceptions import RayError
    from ray.util.annotations import RayDeprecationWarning

    from argus_cli.cluster.actors import PartActor

    context = DataContext.get_current()
    context.max_errored_blocks = -1
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    share = _share(actor)
    blocks = math.ceil(len(items) / rows)
    most = min(_room(share), blocks)
    pool = ActorPoolStrategy(
        min_size=1, max_size=most, initial_size=most,
        # What waits behind the last suspects must not be taken down with them.
        max_tasks_in_flight_per_actor=1 if rows == 1 else 2,
    )  # fmt: skip
    work = [{key: getattr(item, key) for key in _SENT} for item in items]
    with warnings.catch_warnings():  # Ray has no other word for it yet
        warnings.simplefilter("ignore", RayDeprecationWarning)
        dataset = ray.data.from_items(work, override_num_blocks=blocks).map_batches(
            PartActor, fn_constructor_args=(actor, parts), batch_format="pyarrow", batch_size=None,
            compute=pool, max_task_retries=tries - 1, **share,
        )  # fmt: skip
    try:
        yield from dataset.iter_rows()
    except RayError as error:
        raise ArgusError(f"--ray: {str(error).splitlines()[-1]}") from error


def _share(actor: "CaptionActor") -> dict[str, float]:
    """What an actor takes of its machine."""
    import ray

    gpus = ray.cluster_resources().get("GPU", 0) and actor.device in ("auto", "cuda")
    return {"num_cpus": actor.threads, "num_gpus": 1 if gpus else 0}


def _room(share: dict[str, float]) -> int:
    """How many actors the cluster can hold."""
    import ray

    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    return max(1, sum(
        min(int(m.get(names[what], 0) // need) for what, need in share.items() if need)
        for m in machines
    ))  # fmt: skip

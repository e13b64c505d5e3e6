"""One run on a Ray cluster. The only file that imports ray.

Ray Data hands items to actors, starts anew what dies, and tells how far they are. What was lost on
the way is told by the parts that aren't there: its items are tried again, fewer at a time, at last
each alone in a process, and one that takes its process down every time is a failure.
"""

import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from argus_cli import errors
from argus_cli.cluster.parts import Parts
from argus_cli.cluster.places import Item
from argus_cli.errors import ArgusError, UsageError
from argus_cli.output.lines import to_record
from argus_cli.schema import Failure, VideoCaption

if TYPE_CHECKING:
    from argus_cli.cluster.actors import CaptionActor

TRIES = 3
MOST_CPUS = 8  # of an actor: more threads make a picture little faster
MOST_IDLE = 0.1  # of all CPUs, for the sake of fewer and larger actors
MOST_ROWS = 128  # of a part; fewer where actors would have less than 4 parts each
LEAST_ROWS = 8

Machine = tuple[int, int]  # its CPUs and GPUs
_SENT = ("name", "at", "row", "bytes", "mtime_ns")  # of an item


def need_ray() -> None:
    """Raise UsageError where the extra isn't installed."""
    if any(find_spec(name) is None for name in ("ray", "pyarrow")):
        raise UsageError("--ray: Ray isn't installed; pip install 'argus-vlm[ray]'")


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Within, Ray is connected; "local" is a cluster of this machine alone. Raises UsageError."""
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
            reason = [*str(error).splitlines(), type(error).__name__][0]
            raise UsageError(f"--ray {address}: no cluster answers ({reason})") from None
    try:
        yield
    finally:
        if not connected:
            ray.shutdown()


def cpus_of_an_actor(device: str) -> int:
    """What to give to one, so that few CPUs, and no GPU that is wanted, are idle."""
    return fair_cpus(_machines(device))


def fair_cpus(machines: Sequence[Machine]) -> int:
    """The CPUs of an actor. A machine with GPUs has one for each, or more."""
    shares = {
        max(1, cpus // max(gpus, math.ceil(cpus / MOST_CPUS))) for cpus, gpus in machines if cpus
    }
    if not shares or any(gpus for _, gpus in machines):
        return min(shares, default=1)
    most = (1 - MOST_IDLE) * sum(cpus for cpus, _ in machines)
    fit = (share for share in shares if sum(c // share * share for c, _ in machines) >= most)
    return max(fit, default=min(shares))


def room(machines: Sequence[Machine], threads: int) -> int:
    """How many actors the machines can hold. Raises UsageError for none."""
    on_gpus = any(gpus for _, gpus in machines)
    actors = sum(
        min(cpus // threads, gpus) if on_gpus else cpus // threads for cpus, gpus in machines
    )
    if not actors:
        raise UsageError(f"--threads {threads}: no machine of the cluster has so many CPUs")
    return actors


def rows_of_a_part(items: int, actors: int) -> int:
    """So many that there is work for all of the actors, to the end."""
    return min(MOST_ROWS, max(LEAST_ROWS, items // (4 * actors)))


def run_on_cluster(
    actor: "CaptionActor", items: Sequence[Item], parts: Parts
) -> Iterator[Failure | Item]:
    """Each item, or its failure, as its part is written; in no order.

    Raises ArgusError when the model or OUT fails, not for a single input.
    """
    left = {item.name: item for item in items}
    machines = _machines(actor.device)
    actors = room(machines, actor.threads)
    size = 1 if actor.record is VideoCaption else rows_of_a_part(len(items), actors)
    share = {"num_cpus": actor.threads, "num_gpus": 1 if any(g for _, g in machines) else 0}
    # What dies with an actor goes into smaller parts, and in the end alone into its process.
    for rows, tries in ((size, 1), (max(1, size // 8), 1), (1, TRIES)):
        if not left:
            break
        for record in _attempt(actor, list(left.values()), parts, rows, tries, actors, share):
            if record["path"] is None:
                raise getattr(errors, record["error"]["type"])(record["error"]["message"])
            if item := left.pop(record["path"], None):
                yield _result(item, record["error"])
        if left:
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


def _result(item: Item, error: dict[str, str] | None) -> Failure | Item:
    return Failure(item.name, error["type"], error["message"]) if error else item


def _attempt(
    actor: "CaptionActor", items: Sequence[Item], parts: Parts, rows: int, tries: int, room: int,
    share: Mapping[str, int],
) -> Iterator[dict[str, Any]]:  # fmt: skip
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
    blocks = math.ceil(len(items) / rows)
    most = min(room, blocks)
    pool = ActorPoolStrategy(
        min_size=1, max_size=most, initial_size=most,
        # What waits behind the last suspects must not be taken down with them.
        max_tasks_in_flight_per_actor=1 if rows == 1 else 2,
    )  # fmt: skip
    work = [{k: getattr(item, k) for k in _SENT} | {"at": os.fsencode(item.at)} for item in items]
    with warnings.catch_warnings():  # Ray has no other word for it yet
        warnings.simplefilter("ignore", RayDeprecationWarning)
        dataset = ray.data.from_items(work, override_num_blocks=blocks).map_batches(
            PartActor, fn_constructor_args=(actor, parts, tries == TRIES),
            batch_format="pyarrow", batch_size=None,
            compute=pool, max_task_retries=tries - 1, **share,
        )  # fmt: skip
    try:
        yield from dataset.iter_rows()
    except RayError as error:
        reason = [type(error).__name__, *str(error).splitlines()][-1]
        raise ArgusError(f"--ray: {reason}") from error


def _machines(device: str) -> list[Machine]:
    """Those that can hold actors: where one wants a GPU and there are some, those with GPUs."""
    import ray

    alive = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    found = [(int(m.get("CPU", 0)), int(m.get("GPU", 0))) for m in alive]
    wants_gpu = device in ("auto", "cuda")
    with_gpu = [machine for machine in found if wants_gpu and machine[1]]
    return with_gpu or [(cpus, 0) for cpus, _ in found]

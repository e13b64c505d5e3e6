"""Many pictures or films on many machines, by Ray Data.

    ray.data.read_parquet("photos/").map_batches(CaptionActor, concurrency=4, num_cpus=2)

places finds inputs wherever pyarrow reads, parts writes records so that any machine may fail,
actors hold a model each, job runs them. Only job imports ray.
"""

from argus_cli.cluster.actors import CaptionActor

__all__ = ["CaptionActor"]

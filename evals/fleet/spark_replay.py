"""Replays recordings with the Python package on Spark, and compares the merged result with a single replay.

    pip install pyspark        # and the package of foldline; needs Java
    python evals/fleet/spark_replay.py RECORDINGS [SHARDS] [WORKERS]

The partition is a shard number: every task reads all recordings and replays those of its shard. Spark runs in local
mode with WORKERS processes. Exits with 1 if the results differ.
"""

import argparse
import json
import os
import sys
import time

import foldline
from pyspark.sql import SparkSession


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recordings")
    parser.add_argument("shards", type=int, nargs="?", default=8)
    parser.add_argument("workers", type=int, nargs="?", default=2)
    arguments = parser.parse_args()
    path, count, workers = arguments.recordings, arguments.shards, arguments.workers
    # A task uses one processor.
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()

    def replay_partition(numbers):
        for number in numbers:
            yield foldline.replay_shard(path, shard=f"{number}/{count}")

    begin = time.monotonic()
    shards = spark.sparkContext.parallelize(range(1, count + 1), count)
    results = shards.mapPartitions(replay_partition).collect()
    merged = foldline.merge_replays(results)
    on_spark = time.monotonic() - begin
    spark.stop()

    begin = time.monotonic()
    single = foldline.replay(path)
    alone = time.monotonic() - begin
    print(f"{count} shards on {workers} workers: {on_spark:.1f} s; one replay with one thread: {alone:.1f} s")
    is_equal = json.dumps(merged) == json.dumps(single)
    print(f"{single['sessions']} sessions, {single['calls']} calls, results are equal: {is_equal}")
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()

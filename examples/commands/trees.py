"""Train gradient-boosted trees on a table made here, and print what it took as JSON.

The libraries take as many threads as OMP_NUM_THREADS says, which Lockstep sets.
"""

import argparse
import importlib
import json
import os
import sys
import time

import numpy as np


def main():
    """Print rate and accuracy of one training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["xgboost", "lightgbm"])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--trees", type=int, default=50)
    given = parser.parse_args()
    features, labels = table(given.rows, given.columns)
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    begun = time.perf_counter()
    scores = TRAINED[given.library](features, labels, given.trees, threads)
    seconds = time.perf_counter() - begun
    accuracy = float(((scores > 0.5) == labels).mean())
    told = {"fit_s": seconds, "rows_per_s": given.rows * given.trees / seconds}
    print(json.dumps(told | {"accuracy": round(accuracy, 4), "threads": threads}))


def table(rows, columns):
    """Return features and labels that trees can learn in part."""
    draw = np.random.default_rng(0)
    features = draw.standard_normal((rows, columns), dtype=np.float32)
    noise = draw.standard_normal(rows)
    return features, (features[:, :5].sum(axis=1) + noise > 0).astype(int)


def xgboost(features, labels, trees, threads):
    """Return what trees of XGBoost, trained with so many threads, make of the features."""
    library = loaded("xgboost")
    data = library.DMatrix(features, labels, nthread=threads)
    options = {"objective": "binary:logistic", "tree_method": "hist", "nthread": threads}
    return library.train(options, data, num_boost_round=trees).predict(data)


def lightgbm(features, labels, trees, threads):
    """Return the same of LightGBM."""
    library = loaded("lightgbm")
    options = {"objective": "binary", "num_threads": threads, "verbose": -1}
    data = library.Dataset(features, labels, params=options)
    return library.train(options, data, num_boost_round=trees).predict(features)


def loaded(library):
    """Return a library, or end with what to install."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        sys.exit(f"{library} does not load: {error}; pip install '/path/to/checkout[trees]'")


TRAINED = {"xgboost": xgboost, "lightgbm": lightgbm}


if __name__ == "__main__":
    main()

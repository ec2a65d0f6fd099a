"""Arrays, nested arrays and random access give the same batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.sampling import EpochSampling, PoissonSampling, RandomAccess

pytestmark = [pytest.mark.once, pytest.mark.lane]

N = 60
IDS = np.arange(1, N + 1)
POISSON = PoissonSampling(num_examples=N, batch_size=20, steps=6)
EPOCHS = EpochSampling(num_examples=N, batch_size=25, epochs=1)
SAMPLINGS = pytest.mark.parametrize("sampling", [POISSON, EPOCHS])


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


@SAMPLINGS
def test_rows_of_all_columns_belong_together(sampling):
    x = {
        "pair": Pair(IDS, IDS * 2.0),
        "nested": ({"deep": np.stack([IDS, -IDS], 1)},),
        "name": np.char.add("item ", IDS.astype(str)),
    }
    y = (IDS % 2 == 0, IDS.astype(np.int32))
    seen = []
    for batch in sampling.dataset((x, y)).as_numpy_iterator():
        # Epochs have no padding, and no weights unless they are given.
        rows = batch[2] > 0 if len(batch) == 3 else batch[1][1] > 0
        ids = batch[1][1][rows]
        features = batch[0]
        seen.extend(ids)
        assert isinstance(features["pair"], Pair)
        np.testing.assert_array_equal(features["pair"].left[rows], ids)
        np.testing.assert_array_equal(features["pair"].right[rows], ids * 2.0)
        deep = features["nested"][0]["deep"][rows]
        np.testing.assert_array_equal(deep, np.stack([ids, -ids], 1))
        names = [f"item {i}".encode() for i in ids]
        assert features["name"][rows].tolist() == names
        assert (features["name"][~rows] == b"").all()
        np.testing.assert_array_equal(batch[1][0][rows], ids % 2 == 0)
    assert set(seen) <= set(IDS)
    # Nobody in six steps: less than 1e-60.
    assert seen


@pytest.mark.parametrize(
    "values",
    [
        IDS.astype(np.float32),
        IDS.tolist(),
        tf.constant(IDS),
        IDS.astype(np.uint8),
        tf.cast(IDS, tf.bfloat16),
        np.broadcast_to(IDS, [3, N]).T,
    ],
    ids=["array", "list", "tensor", "uint8", "bfloat16", "strided"],
)
def test_kinds_of_arrays(values):
    dtype = np.asarray(values).dtype
    for x, y, weight in POISSON.dataset((values, IDS)).as_numpy_iterator():
        assert x.dtype == dtype
        expected = np.asarray(values)[y[weight > 0] - 1]
        np.testing.assert_array_equal(x[weight > 0], expected)


def test_arrays_are_not_copied():
    """Neither into a graph nor elsewhere: a later change is seen."""
    x = np.zeros(N)
    dataset = POISSON.dataset((x, IDS))
    x[:] = 7.0
    for seen, _, weight in dataset.as_numpy_iterator():
        np.testing.assert_array_equal(seen[weight > 0], 7.0)


def test_memory_mapped_files(tmp_path):
    np.save(tmp_path / "x.npy", IDS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for x, y, _ in POISSON.dataset((mapped, IDS)).as_numpy_iterator():
        np.testing.assert_array_equal(x, y)


def test_without_labels():
    for x, y, weight in POISSON.dataset((IDS,)):
        assert y is None
        assert x.shape == weight.shape
    for batch in EPOCHS.dataset((IDS,)):
        assert len(batch) == 1


@SAMPLINGS
@pytest.mark.parametrize("labels", [True, False])
def test_weights_are_carried(sampling, labels):
    weights = np.where(IDS % 5 == 0, 0.0, IDS / 8)
    data = (IDS, IDS if labels else None, weights)
    for x, y, weight in sampling.dataset(data):
        assert (y is None) != labels
        assert weight.dtype == tf.float16
        x, weight = x.numpy(), weight.numpy()
        drawn = x > 0
        expected = weights[x[drawn] - 1].astype(np.float16)
        np.testing.assert_array_equal(weight[drawn], expected)
        np.testing.assert_array_equal(weight[~drawn], 0)


class Table:
    """A sequence of examples, as a user might have it."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int):
        return {"id": [index + 1], "s": "x" * index}, index + 1, 0.5


def _one(index):
    assert type(index) is int
    return Table()[index]


def _many(indices):
    assert indices.dtype == np.int64
    assert (np.diff(indices) > 0).all()
    strings = np.array(["x" * i for i in indices])
    ids = indices + 1
    return {"id": ids[:, None], "s": strings}, ids, np.full(ids.size, 0.5)


@SAMPLINGS
@pytest.mark.parametrize(
    "source",
    [
        RandomAccess(Table()),
        RandomAccess(_one, num_examples=N),
        RandomAccess(_many, num_examples=N, batched=True),
    ],
    ids=["sequence", "function", "batched"],
)
def test_random_access(sampling, source):
    dataset = sampling.dataset(source)
    spec, _, _ = dataset.element_spec
    assert spec["id"].shape[1:] == [1]
    assert spec["s"].dtype == tf.string
    for x, y, weight in dataset.as_numpy_iterator():
        np.testing.assert_array_equal(weight, 0.5 * (y > 0))
        np.testing.assert_array_equal(x["id"][:, 0], y)
        lengths = [len(s) for s in x["s"]]
        np.testing.assert_array_equal(lengths, np.maximum(y - 1, 0))


def test_random_access_reads_only_what_is_drawn():
    read = []

    def source(index):
        read.append(index)
        return (index,)

    huge = PoissonSampling(num_examples=2**40, batch_size=5, steps=2)
    dataset = huge.dataset(RandomAccess(source, num_examples=2**40))
    assert read == [0]
    drawn = sum(int((weight > 0).numpy().sum()) for _, _, weight in dataset)
    assert len(read) == 1 + drawn


def test_random_access_with_empty_draws():
    few = PoissonSampling(num_examples=3, batch_size=1, steps=60)
    for batched in (False, True):
        source = RandomAccess(
            lambda i: (i + 1,), num_examples=3, batched=batched
        )
        weights = [w.numpy().sum() for _, _, w in few.dataset(source)]
        # None of 60 empty: 0.7^60 < 1e-9.
        assert 0 in weights


@pytest.mark.parametrize(
    ("first", "others", "message"),
    [
        ((np.zeros(2),), (np.zeros(3),), "does not fit|with shape"),
        ((1,), (1.5,), "with shape .* and dtype float64, expected"),
        (({"a": 1},), ({"b": 1},), r"x\['a'\].*x\['b'\]|x\['b'\].*x\['a'\]"),
        ((1, 1, 1.0), (1, 1, -1.0), "negative"),
        ((1, 1), (1, 1, 1.0), "sample_weight"),
        ((1,), 3, "expected a tuple"),
    ],
)
def test_examples_that_differ_from_the_first(first, others, message):
    source = RandomAccess(lambda i: others if i else first, num_examples=N)
    with pytest.raises(tf.errors.OpError, match=message):
        list(POISSON.dataset(source))


def test_types_that_lose_nothing_are_taken():
    source = RandomAccess(lambda i: (i if i else 0.5,), num_examples=N)
    for x, _, _ in POISSON.dataset(source):
        assert x.dtype == tf.float64


def test_batched_source_with_the_wrong_number_of_rows():
    source = RandomAccess(
        lambda i: (np.zeros(i.size if i[-1] == 0 else 1),),
        num_examples=N,
        batched=True,
    )
    with pytest.raises(tf.errors.OpError, match="one for each example"):
        list(POISSON.dataset(source))


@SAMPLINGS
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (IDS, "expected a tuple"),
        ({"a": IDS}, "expected a tuple"),
        ([IDS, IDS], "expected a tuple"),
        ((), "expected a tuple"),
        ((IDS, IDS, IDS, IDS), "expected a tuple"),
        (({},), "x holds no arrays"),
        ((None,), "x is a NoneType that does not fit"),
        ((IDS[:-1],), r"x has shape \(59,\), expected 60 rows"),
        (({"a": IDS, "b": IDS[:5]},), r"x\['b'\] has shape \(5,\)"),
        ((IDS, IDS[1:]), "y has shape"),
        ((IDS, (IDS, 3)), r"y\[1\] has shape \(\)"),
        ((IDS, IDS, np.ones(3)), "sample_weight has shape"),
        (([IDS, IDS],), "several inputs|Several inputs"),
        (([[1], [2, 3]] * 30,), "x is a list that does not fit"),
        ((tf.ragged.constant([[1], [2, 3]] * 30),), "RaggedTensor of .* Pad"),
        ((tf.sparse.from_dense(IDS),), "SparseTensor of .* Pad"),
        ((np.array(["a", None] * 30),), "ndarray of object"),
        ((IDS.astype("datetime64[s]"),), "does not fit a dense tensor"),
        ((IDS.astype(np.float16),), r"x holds scalars of type float16.*Cast"),
        ((IDS, IDS.astype(np.float16)), "y holds scalars of type float16"),
        ((IDS, IDS, -IDS), "sample_weight holds weights that are negative"),
        ((IDS, IDS, IDS * np.nan), "not finite"),
        ((IDS, IDS, IDS * 1e5), "out of range"),
        ((IDS, IDS, np.ones([N, 1])), "one number for each example"),
        (RandomAccess(lambda i: (i,), num_examples=59), "has 59 examples"),
        (RandomAccess(lambda i: i, num_examples=N), "expected a tuple"),
        (
            RandomAccess(lambda i: (np.float16(i),), num_examples=N),
            "scalars of type float16",
        ),
    ],
)
def test_bad_data(sampling, data, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sampling.dataset(data)


def test_half_precision_is_fine_unless_scalar():
    vectors = np.ones([N, 3], np.float16)
    for x, _, _ in POISSON.dataset((vectors, IDS)):
        assert x.dtype == tf.float16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": 3, "num_examples": 5}, "source is a int"),
        ({"source": lambda i: i}, "has no length"),
        ({"source": []}, "num_examples is 0"),
        ({"source": Table(), "num_examples": 2.0}, "num_examples is 2.0"),
    ],
)
def test_bad_random_access(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RandomAccess(**arguments)

"""Data sets as graphs: one graph of all examples, each joined to those nearest to it."""

import numpy as np

from focalgeo.types import NEIGHBOURS, Dataset, InputError, Split


def joined(data: Dataset) -> Dataset:
    """The graph whose nodes are the examples of train, val and test: each split is all of it with its own labels alone.

    A network so reads the features of all nodes in training (transductive), and the labels of train.

    Returns:
        x float32 [1, nodes, features + NEIGHBOURS], the same array in every split: of each node its features, and
        behind them the numbers of the nodes nearest to it, itself left out. Features are posts' TF-IDF over the
        vocabulary, compared by cosine, else an example's numbers divided by the largest of all, compared by Euclidean
        distance. y int32 [1, nodes], -1 at the nodes of the other splits.

    Raises:
        InputError: trees, or no more examples than NEIGHBOURS.

    Source:
        scikit-learn's TfidfTransformer, with 1 + log(count) for counts, and NearestNeighbors.
    """
    from sklearn.neighbors import NearestNeighbors  # heavy, and only graphs need it

    parts = {part: getattr(data, part) for part in ("train", "val", "test")}
    x, y = map(np.concatenate, zip(*parts.values(), strict=True))
    if y.ndim > 1 or len(y) <= NEIGHBOURS:
        raise InputError(f"{data.name} makes no graph: name a data set of more than {NEIGHBOURS} examples, no trees")
    if data.vocabulary:
        from scipy import sparse
        from sklearn.feature_extraction.text import TfidfTransformer

        # Of the words of the vocabulary alone: padding and unknown words, ids 0 and 1, are none. Compared by cosine, as
        # by Euclid's distance a post without words would be near to all.
        posts = np.repeat(np.arange(len(x)), x.shape[1])
        counts = sparse.csr_array((np.ones(x.size), (posts, x.ravel())), (len(x), len(data.vocabulary)))[:, 2:]
        features, metric = TfidfTransformer(sublinear_tf=True).fit_transform(counts).toarray(), "cosine"
    else:
        features, metric = x.reshape(len(x), -1) / np.float32(np.abs(x).max() or 1), "euclidean"
    features = features.astype(np.float32)
    nearest = NearestNeighbors(n_neighbors=NEIGHBOURS, metric=metric).fit(features).kneighbors(return_distance=False)
    x = np.concatenate([features, nearest], axis=1, dtype=np.float32)[None]
    places = np.repeat(list(parts), [len(split.y) for split in parts.values()])
    splits = {part: Split(x, np.where(places == part, y, np.int32(-1))[None]) for part in parts}
    return data._replace(name=f"graph:{data.name}", vocabulary=(), features=None, **splits)

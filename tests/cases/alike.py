"""Cases of which both Kerases make the same graph, all but what is everyday.

Everyday is how Dense adds a bias, how Embedding looks up, and how losses take
means: these differ, and every other case shows them on both. The types of
operations behind the gradients of the cases here were compared: tf-keras has
none that Keras 3 has not, everyday ones aside. So `make test` tries them on
Keras 3 alone. Without `-m "not once"` they are run on both.
"""

from __future__ import annotations

_NAMES = """
attention with dot products
target attention
attention by hand, band_part
activation relu
activation sigmoid
activation tanh
activation softplus
activation softsign
activation elu
activation selu
activation gelu
activation swish
activation exponential
conv1d, same
conv1d, causal
conv1d, strides
conv1d, dilation
conv1d, causal and dilated
conv1d twice
conv2d, same and strides
conv2d, dilation
conv2d, dilation and same
conv2d twice, no bias
separable conv1d
depthwise conv1d
depthwise conv2d
depthwise conv2d, strides
depthwise conv2d, dilation
conv1d transposed
conv2d transposed
Average pooling 1d
Max pooling 2d
Average pooling 2d
GlobalMax pooling 1d
GlobalAverage pooling 1d
GlobalMax pooling 2d
GlobalAverage pooling 2d
upsampling, bilinear
permute, reshape, flatten, repeat
dense on rank 4
conv1d over the batch
pooling over the batch
a block in a compiled tf.function
layer norm in a tf.function
a tf.function called twice
a model that is a tf.function
recompute_grad in a tf.function
a tf.function in recompute_grad
custom gradients in a tf.function
a batch mean in a tf.function
tf.cond in a tf.function
Python code in a tf.function
cross layers
cross layers of low rank
cross layers, vectors
dot interaction, lower triangle
factorization machine
neural collaborative filtering
mixture of experts
wide and deep
tied table
kernel as a product of weights
lookup by embedding_lookup
lookup by gather of a column
lookup by one_hot
constant places by tf.gather, last axis
constant places by tf.boolean_mask
dot interaction, pairs by tf.gather
loss MeanAbsoluteError
loss Huber
loss LogCosh
loss MeanAbsolutePercentageError
loss Poisson
loss KLDivergence
pairs chosen by a constant mask
batch norm called with training=False
normalization by constants
whitening by the batch
layer norm over the batch axis
top k within an example
sort within an example
argsort and gather within an example
cumulative sums and products
cosine similarity
where and boolean gates
diagonals and bands
masks by length
equations of several forms
repeat, roll, unstack
clip, norms, special functions
sliding windows
log-sum-exp
variances and extremes
sort over the batch
groups over the batch
string lookup, several out of vocabulary
string lookup, multi-hot
hashing of strings with salt
hashing of integers
hashed crossing
discretization, one-hot
category encoding, multi-hot
category encoding, counts
lower case, split off
numbers in strings
ragged ids, sqrtn by hand
ragged ids, safe_embedding_lookup_sparse
ragged ids and an id, shared table
ragged ids, to_tensor of fixed length
ragged ids, to_tensor
ragged ids, dense, max pooling
ragged ids, attention to an id
listwise softmax
pairwise within a list
approximate NDCG
Bayesian personalised ranking
softmax over the catalogue
softmax over public candidates
tf.nn.sampled_softmax_loss
tf.nn.nce_loss
label smoothing
focal loss by hand
hinge loss by hand
loss Hinge
loss SquaredHinge
loss CategoricalHinge
SimpleRNN, unrolled
LSTM, unrolled
bidirectional LSTM, unrolled
retrieval, shared negatives without ids
retrieval, temperature, weights, sum
retrieval, linear candidate tower
retrieval, deep candidate tower
retrieval, deep tower, whole catalogue
retrieval, several candidate features
"""

ALIKE = frozenset(_NAMES.strip().splitlines())

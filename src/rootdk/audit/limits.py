"""How much of a checkpoint is read: every limit of the audit in one place, each with what real models need.

What lies beyond is refused in one line before any work is done, so that a file can cost neither memory nor hours. What
lies within is merely large: a bar shows how far it is, and Ctrl-C ends it.
"""

LARGEST_CONFIG = 16 * 2**20  # bytes; real ones have thousands
LARGEST_INDEX = 32 * 2**20  # bytes of an index of shards, or of the header of one file; real ones up to 13 MB
LARGEST_HEADERS = 64 * 2**20  # bytes of all headers together
MOST_SHARDS = 1024  # real ones: 191
MOST_TENSORS = 250_000  # real ones: 140,000
LONGEST_NAME = 512  # characters of the name of a tensor or of a model type
MOST_PARTS = 64  # of a name, between dots
MOST_RANK = 16  # axes of a tensor

MOST_LAYERS = 2048  # modules of attention; real ones: 200
MOST_HEADS = 1024  # of one layer; real ones: 128
MOST_HEADS_IN_ALL = 32_768  # of all layers; real ones: 16,128
LARGEST_HEAD = 1024  # d_k; real ones: 576
LARGEST_WIDTH = 2**17  # inputs of a projection; real ones: 16,384
LARGEST_LENGTH = 2**40  # positions
LARGEST_NUMBER = 1e12  # of a scale, a cap, a factor; the smallest is one over it

MOST_BYTES = 2**38  # of query and key weights; a model of 405 billion parameters has 73 GB of them in bfloat16
MOST_WORK = 5e13  # multiply-adds; the same model needs 6e12

LARGEST_GRAMS = 16 * 2**20  # bytes of matrices that are held at a time where the rows of a head do not lie together
LARGEST_BLOCK = 2**19  # numbers of one block of weights

LARGEST_TEXT = 16 * 2**20  # characters of --text
# What a model that is run may hold over what its weights have: tied weights count twice, buffers come on top.
MOST_GROWTH = 3.0
SMALL_MODEL = 2**26  # numbers that a model may hold whatever its weights have

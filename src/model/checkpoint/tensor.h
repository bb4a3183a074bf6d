/*
 * A tensor in the map of its file, or one of random weights that is not stored, and its elements
 * read as float32.
 */
#ifndef KVD_MODEL_CHECKPOINT_TENSOR_H
#define KVD_MODEL_CHECKPOINT_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/half.h"
#include "model/checkpoint/random.h"

/*
 * Blocks of quantised weights, in which a group of consecutive elements of a row shares scales. The
 * layouts and the order of the operations are those of ggml
 * (https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c), so that the float32 values are
 * the same bit for bit.
 */

/*
 * Packings, formats in which a file stores the elements of a tensor.
 *
 * KVD_PLAIN has no blocks: one number after another. KVD_RANDOM takes no bytes: its elements are
 * computed (random.h). The other names are those of ggml; q is an element's code, d, m and s are
 * float16 or integer scales of the block or of a group of 16 or 32 elements.
 *
 *   Q4_0, Q5_0, Q8_0    blocks of 32: d (q - 8), d (q - 16), d q
 *   Q4_1, Q5_1          blocks of 32: d q + m
 *   IQ4_NL              blocks of 32: d table[q], a fixed table of 16 integers
 *   MXFP4               blocks of 32: 2^(e - 127) times a number of 4 bits (E2M1)
 *   MXFP4_APART         as MXFP4, two adjacent numbers per byte, scales in another tensor
 *   Q2_K, Q4_K, Q5_K    blocks of 256: d s q - m s', scales s and s' for each group
 *   Q3_K, Q6_K          blocks of 256: d s (q - 4), d s (q - 32)
 */
typedef enum {
    KVD_PLAIN,
    KVD_Q8_0,
    KVD_Q4_0,
    KVD_Q4_1,
    KVD_Q5_0,
    KVD_Q5_1,
    KVD_Q2_K,
    KVD_Q3_K,
    KVD_Q4_K,
    KVD_Q5_K,
    KVD_Q6_K,
    KVD_IQ4_NL,
    KVD_MXFP4,
    KVD_MXFP4_APART,
    KVD_RANDOM
} kvd_packing;

enum { KVD_BLOCK_MOST = 256 }; /* elements of the largest block */

/* Layout of a packing: number of elements and of bytes per block. */
typedef struct {
    const char *name; /* in lower case, such as "q4_k" */
    size_t elements;  /* elements per block */
    size_t bytes;     /* bytes per block */
} kvd_block_layout;

/*
 * Returns the block layout (elements and bytes of a block) of a packing, or NULL for KVD_PLAIN and
 * KVD_RANDOM.
 */
const kvd_block_layout *kvd_block_layout_of(kvd_packing packing);

/*
 * Writes elements first .. first+n-1 of the quantised block at `block`, which may be unaligned, to
 * out. first + n is at most the number of elements in a block.
 */
void kvd_block_read(kvd_packing packing, const unsigned char *block, size_t first, size_t n,
                    float *out);

/*
 * Writes the values of n codes of E2M1, from code `first` of the block on, which are stored two per
 * byte with the low half first, times 2^(scale - 127). A scale of 255 means NaN, as in the OCP
 * Microscaling Formats specification, version 1.0.
 */
void kvd_mxfp4_read(const unsigned char *codes, unsigned char scale, size_t first, size_t n,
                    float *out);

enum { KVD_TENSOR_RANK = 4 };

/*
 * Order of the rows in the file, where it differs from the order that the tensor's name implies.
 *
 *   KVD_ROWS_IN_PAIRS   rows i and i + d_head / 2 of every head are next to each other, as rows 2i
 *                       and 2i + 1
 *   KVD_ROWS_IN_STACKS  the file holds all query heads, then all key heads, then all value heads;
 *                       the name implies, for each KV head, `group` query heads, a key head and a
 *                       value head
 *   KVD_ROWS_AS_COLUMNS the file holds the transposed matrix
 */
typedef enum {
    KVD_ROWS_IN_ORDER,
    KVD_ROWS_IN_PAIRS,
    KVD_ROWS_IN_STACKS,
    KVD_ROWS_AS_COLUMNS
} kvd_row_order;

typedef struct {
    const char *name; /* name, valid as long as data */
    kvd_dtype dtype;  /* element type; KVD_F32 if packed */
    kvd_packing packing;
    int rank;
    size_t dims[KVD_TENSOR_RANK];
    size_t n;         /* number of elements */
    const void *data; /* elements in the map, maybe unaligned; valid until close; NULL if random */
    const unsigned char *scales; /* KVD_MXFP4_APART: one per block, in the map */
    bool mapped;                 /* true if data is in the map of a file (streaming.h) */
    kvd_random_tensor random;    /* generator of the elements, for KVD_RANDOM */
    const char *file;            /* path of the file, for messages */
    kvd_row_order order;
    size_t d_head, group, n_kv_heads; /* used by the row orders other than KVD_ROWS_IN_ORDER */
} kvd_tensor;

/* Returns the name of the storage type: "f32", "f16", "bf16", "random" or the name of a packing. */
const char *kvd_tensor_type_name(const kvd_tensor *t);

/*
 * Returns the number of bytes that n elements take in the file, 0 for random weights. For a packed
 * tensor n must be a number of whole blocks.
 */
size_t kvd_tensor_bytes(const kvd_tensor *t, size_t n);

/*
 * Replaces a tensor whose first dimension is n by its slice number `at` along this dimension.
 * Returns 0, or -1 with *err if the first dimension differs from n or is the only one.
 */
int kvd_tensor_take_slice(kvd_tensor *t, size_t n, size_t at, kvd_err *err);

/*
 * Writes elements first .. first+n-1 to out as float32, row by row in the order that the tensor's
 * name implies.
 */
void kvd_tensor_read(const kvd_tensor *t, size_t first, size_t n, float *out);

#endif

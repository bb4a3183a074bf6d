/* A tensor of a mapped file or of random weights, read as float32. */
#ifndef KVD_MODEL_CHECKPOINT_TENSOR_H
#define KVD_MODEL_CHECKPOINT_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/half.h"
#include "model/checkpoint/random.h"

/* Formats of quantised tensors. Decoded values equal those of ggml bit for bit:
 * https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c */

/* Element formats, named as in ggml. Formulas decode a code q; d, m and e are stored per block, s
 * and s' per group of codes in a block.
 *
 *   PLAIN               no blocks
 *   RANDOM              no bytes: computed (random.h)
 *   Q4_0, Q5_0, Q8_0    blocks of 32: d (q - 8), d (q - 16), d q
 *   Q4_1, Q5_1          blocks of 32: d q + m
 *   IQ4_NL              blocks of 32: d table[q], a fixed table of 16 integers
 *   MXFP4               blocks of 32: 2^(e - 127) q, where q is a 4-bit float (E2M1)
 *   MXFP4_APART         as MXFP4, two adjacent numbers per byte, scales in another tensor
 *   Q2_K, Q4_K, Q5_K    blocks of 256: d s q - m s'
 *   Q3_K, Q6_K          blocks of 256: d s (q - 4), d s (q - 32) */
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

enum { KVD_BLOCK_MOST = 256 };

typedef struct {
    const char *name; /* in lower case, such as "q4_k" */
    size_t elements;
    size_t bytes;
} kvd_block_layout;

/* Returns the layout of a quantised format, or NULL for KVD_PLAIN and KVD_RANDOM. */
const kvd_block_layout *kvd_block_layout_of(kvd_packing packing);

/* Decodes n elements of a block, beginning with element `first`. The bytes of the block may be
 * unaligned. */
void kvd_block_read(kvd_packing packing, const unsigned char *block, size_t first, size_t n,
                    float *out);

/* Decodes n values of an MXFP4 block: E2M1 codes times 2^(scale - 127). */
void kvd_mxfp4_read(const unsigned char *codes, unsigned char scale, size_t first, size_t n,
                    float *out);

enum { KVD_TENSOR_RANK = 4 };

/* Order in which a file stores the rows of a weight matrix. kvd_tensor_read returns them in the
 * order of Hugging Face files.
 *
 *   KVD_ROWS_IN_PAIRS   rows 2i and 2i + 1 of a head in the file are rows i and i + d_head / 2 of
 *                       the head in Hugging Face files
 *   KVD_ROWS_IN_STACKS  the file has all query heads, then all key heads, then all value heads;
 *                       Hugging Face files have, for each KV head, `group` query heads, a key
 *                       head and a value head
 *   KVD_ROWS_AS_COLUMNS the file has the transposed matrix */
typedef enum {
    KVD_ROWS_IN_ORDER,
    KVD_ROWS_IN_PAIRS,
    KVD_ROWS_IN_STACKS,
    KVD_ROWS_AS_COLUMNS
} kvd_row_order;

typedef struct {
    const char *name; /* valid as long as `data` */
    kvd_dtype dtype;  /* KVD_F32 if quantised */
    kvd_packing packing;
    int rank;
    size_t dims[KVD_TENSOR_RANK];
    size_t n;
    /* the tensor's bytes in the mapped file, maybe unaligned, or NULL if they are not in a file */
    const void *data;
    /* scales of the blocks in the mapped file, if the packing is KVD_MXFP4_APART (scales in another
     * tensor) */
    const unsigned char *scales;
    bool mapped;
    kvd_random_tensor random;
    const char *file;
    kvd_row_order order;
    /* sizes of the model's attention, with which kvd_tensor_read reorders rows: dimensions per
     * head, query heads per KV head, number of KV heads */
    size_t d_head, group, n_kv_heads;
} kvd_tensor;

/* Returns the type's name, such as "bf16", "random" or "q4_k". */
const char *kvd_tensor_type_name(const kvd_tensor *t);

/* Returns how many bytes n elements take in the file, 0 for random weights. */
size_t kvd_tensor_bytes(const kvd_tensor *t, size_t n);

/* Replaces the tensor *t, of shape [n][...], by its part `at` along the first dimension. Fails if
 * the first dimension is not n. */
int kvd_tensor_take_slice(kvd_tensor *t, size_t n, size_t at, kvd_err *err);

/* Writes n elements of a tensor, beginning with element `first`, to `out` as float32, in the order
 * of Hugging Face files. */
void kvd_tensor_read(const kvd_tensor *t, size_t first, size_t n, float *out);

#endif

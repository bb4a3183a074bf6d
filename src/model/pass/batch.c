#include "model/pass/batch.h"

#include <limits.h>

#include "common/rng.h"
#include "model/pass/blocks.h"

int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err)
{
    const int max_positions = kvd_checkpoint_config(c)->max_positions;
    if (max_tokens == 0 || max_tokens > INT_MAX)
        return kvd_fail(err, "a batch of %zu tokens is outside 1 .. %d", max_tokens, INT_MAX);
    if (max_len == 0 || max_len > (size_t)max_positions)
        return kvd_fail(err, "'%s': sequences of %zu tokens, but the model was made for 1 .. %d",
                        kvd_checkpoint_path(c), max_len, max_positions);
    return 0;
}

/* Returns true if the model has LongRoPE and needs both its tables, for short and for long
 * sequences. */
static bool two_tables(const kvd_config *c, size_t max_len)
{
    return c->rope_scaling == KVD_ROPE_LONGROPE && max_len > (size_t)c->rope_original_positions;
}

size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len)
{
    if (c->positions != KVD_POSITIONS_ROPE)
        return 0;
    return max_len * (two_tables(c, max_len) ? 2 : 1) * (c->rope_local_theta > 0 ? 2 : 1);
}

void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine)
{
    const size_t half = (size_t)c->d_head / 2;
    if (c->positions != KVD_POSITIONS_ROPE)
        return;
    const size_t tables = kvd_batch_rope_rows(c, max_len) / max_len, two = two_tables(c, max_len);
    for (size_t i = 0; i < tables; i++)
        kvd_rope_tables(c, i > two, two && i == 1 ? max_len : 1, max_len,
                        cosine + i * max_len * half, sine + i * max_len * half);
}

size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer)
{
    return kvd_rope_local(c, layer) ? kvd_batch_rope_rows(c, max_len) / 2 : 0;
}

size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole)
{
    return two_tables(c, max_len) && whole > (size_t)c->rope_original_positions ? max_len : 0;
}

size_t kvd_batch_start(const kvd_batch *b, size_t s)
{
    return b->start ? b->start[s] : 0;
}

size_t kvd_batch_whole(const kvd_batch *b, size_t s)
{
    return b->whole ? b->whole[s] : b->offset[s + 1] - b->offset[s];
}

static int check_lengths(const kvd_batch *b, size_t max_tokens, size_t max_len, kvd_err *err)
{
    if (b->n_sequences == 0 || b->offset[0] != 0 || b->offset[b->n_sequences] > max_tokens)
        return kvd_fail(err, "a batch of %zu sequences and %zu tokens, room for %zu",
                        b->n_sequences, b->n_sequences ? b->offset[b->n_sequences] : 0, max_tokens);
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t first = b->offset[s], end = b->offset[s + 1];
        if (end <= first || end - first > max_len)
            return kvd_fail(err, "sequence %zu has %zu tokens, not 1 .. %zu", b->first_sequence + s,
                            end > first ? end - first : 0, max_len);
        const size_t start = kvd_batch_start(b, s), whole = kvd_batch_whole(b, s);
        if (whole > max_len || start > whole || end - first > whole - start)
            return kvd_fail(err, "sequence %zu: positions %zu .. %zu of %zu, room for %zu",
                            b->first_sequence + s, start, start + end - first - 1, whole, max_len);
    }
    return 0;
}

int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err)
{
    if (check_lengths(b, max_tokens, max_len, err))
        return -1;
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t first = b->offset[s], end = b->offset[s + 1];
        const size_t start = kvd_batch_start(b, s);
        const size_t row = kvd_batch_rope_first(c, max_len, kvd_batch_whole(b, s));
        for (size_t i = first; i < end; i++) {
            if (b->id[i] >= (uint32_t)c->vocab_size)
                return kvd_fail(
                    err,
                    "sequence %zu, position %zu: token id %u is not below the vocabulary size %d",
                    b->first_sequence + s, start + i - first, (unsigned)b->id[i], c->vocab_size);
            position[i] = (uint32_t)(start + i - first);
            rope_row[i] = (uint32_t)(start + i - first + row);
        }
    }
    return 0;
}

size_t kvd_batch_longest(const kvd_batch *b)
{
    size_t longest = 0;
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t n = b->offset[s + 1] - b->offset[s];
        longest = n > longest ? n : longest;
    }
    return longest;
}

int kvd_batch_not_finite(const kvd_config *c, const kvd_batch *b, const char *where, size_t row,
                         kvd_err *err)
{
    size_t s = 0;
    while (b->offset[s + 1] <= row)
        s++;
    return kvd_fail(err, "'%s': %s, row %zu (sequence %zu, position %zu): activation is not finite",
                    c->path, where, row, b->first_sequence + s,
                    kvd_batch_start(b, s) + row - b->offset[s]);
}

int kvd_layer_check(const kvd_config *c, int layer, kvd_err *err)
{
    return layer >= 0 && layer < c->n_layers
               ? 0
               : kvd_fail(err, "layer %d asked for, the model has %d", layer, c->n_layers);
}

void kvd_batch_targets(const kvd_batch *b, uint32_t *target, uint64_t seed, double *u)
{
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t first = b->offset[s], last = b->offset[s + 1] - 1;
        kvd_rng r;
        kvd_rng_seed(&r, seed, b->first_sequence + s);
        for (size_t i = first; i <= last; i++) {
            target[i] = i < last ? b->id[i + 1] : UINT32_MAX;
            if (u)
                u[i] = kvd_rng_uniform(&r);
        }
    }
}

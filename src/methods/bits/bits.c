/* Functions that several quantisation methods use, declared in bits.h. */
#include "methods/bits/bits.h"

int kvd_bits_check(const kvd_bits_method *m, const kvd_parameter_values *v,
                   const kvd_method_setup *s, kvd_err *err)
{
    return kvd_status((!m->open && m->check && m->check(v, err)) ||
                      (m->fits && m->fits(v, s, err)));
}

int kvd_bits_open(const kvd_bits_method *m, const kvd_parameter_values *v,
                  const kvd_method_setup *s, void **self, kvd_err *err)
{
    if (kvd_bits_check(m, v, s, err))
        return -1;
    if (m->open)
        return m->open(v, s, self, err);
    *self = (void *)(uintptr_t)v;
    return 0;
}

void kvd_bits_close(const kvd_bits_method *m, void *self)
{
    if (m->close && self)
        m->close(self);
}

kvd_bits_count kvd_bits_of_groups(size_t n, size_t d, bool by_channel, size_t group, int bits)
{
    const size_t lines = by_channel ? d : n, along = by_channel ? n : d;
    return (kvd_bits_count){(double)(n * d) * bits,
                            (double)(lines * ((along + group - 1) / group)) * KVD_GROUP_SIDE_BITS};
}

void kvd_bits_code_groups(const float *x, size_t n, size_t d, bool by_channel, size_t group,
                          int bits, float *y, kvd_bits_count *count)
{
    const size_t lines = by_channel ? d : n, along = by_channel ? n : d,
                 next_line = by_channel ? 1 : d, next = by_channel ? d : 1,
                 groups = (along + group - 1) / group;
    /* Processes all channels of a group of tokens before the next group, which makes better use of
     * the CPU's caches. */
    for (size_t i = 0; i < lines * groups; i++) {
        const size_t l = by_channel ? i % lines : i / groups,
                     at = (by_channel ? i / lines : i % groups) * group,
                     some = along - at < group ? along - at : group,
                     first = l * next_line + at * next;
        (void)kvd_quantise_group(x + first, some, next, bits, y + first);
    }
    const kvd_bits_count of = kvd_bits_of_groups(n, d, by_channel, group, bits);
    count->payload += of.payload;
    count->side += of.side;
}

size_t kvd_bits_take_rows(const kvd_bits_block *b, size_t sink, const float *mean, float *decoded,
                          float *rows, uint32_t *position, kvd_bits_count *count)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        const float *const x = b->x + i * b->d;
        const bool exact = b->position[i] < sink;
        for (size_t j = 0; j < b->d; j++)
            if (exact)
                decoded[i * b->d + j] = kvd_round_f16(x[j]);
            else
                rows[n * b->d + j] = x[j] - mean[j];
        count->payload += exact ? 16.0 * (double)b->d : 0;
        if (!exact)
            position[n++] = b->position[i];
    }
    return n;
}

void kvd_bits_give_rows(const kvd_bits_block *b, size_t sink, const float *mean, const float *rows,
                        float *decoded)
{
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; b->position[i] >= sink && j < b->d; j++)
            decoded[i * b->d + j] = *rows++ + mean[j];
}

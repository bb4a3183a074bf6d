#ifndef KVD_TESTS_CODE_ROWS_H
#define KVD_TESTS_CODE_ROWS_H

#include <stdlib.h>

#include "methods/method.h"
#include "unit.h"

/* Quantises and restores rows of b. NULL means positions 0, 1, ... and the higher precision. */
static inline void code_rows(const char *text, const kvd_method_setup *setup, kvd_bits_block b,
                             float *decoded, kvd_bits_count *count)
{
    uint32_t *const position = malloc(b.n * sizeof *position);
    uint8_t *const level = malloc(b.n);
    kvd_method m;
    void *self = NULL;
    kvd_err err = {""};
    assert_true(position && level);
    for (size_t i = 0; i < b.n; i++) {
        position[i] = (uint32_t)i;
        level[i] = KVD_LEVEL_HIGH;
    }
    b.position = b.position ? b.position : position;
    b.level = b.level ? b.level : level;
    if (kvd_method_parse(text, &m, &err))
        fail_msg("%s", err.msg);
    const kvd_bits_method *const bits = m.plan.bits;
    if (kvd_bits_open(bits, &m.plan.bits_values, setup, &self, &err) ||
        bits->code(self, &b, decoded, count, &err))
        fail_msg("%s", err.msg);
    kvd_bits_close(bits, self);
    free(position);
    free(level);
}

#endif

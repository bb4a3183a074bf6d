#ifndef KVD_TESTS_CODE_ROWS_H
#define KVD_TESTS_CODE_ROWS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/method.h"
#include "unit.h"

static inline kvd_method parsed(const char *text)
{
    kvd_method m;
    kvd_err err = {""};
    OK(kvd_method_parse(text, &m, &err));
    return m;
}

/* Opens a method such as "kivi,bits=4". The caller closes *p. */
static inline void open_plan(kvd_plan *p, const char *text, size_t prompt,
                             const kvd_method_setup *setup)
{
    kvd_err err = {""};
    *p = parsed(text).plan;
    p->prompt = prompt;
    if (kvd_plan_open(p, setup, &err))
        fail_msg("%s: %s", text, err.msg);
}

/* Checks that opening the method `text` fails with `message`. */
static inline void refuse_plan(const char *text, size_t prompt, const kvd_method_setup *setup,
                               const char *message)
{
    kvd_err err = {""};
    kvd_plan p = parsed(text).plan;
    p.prompt = prompt;
    assert_int_equal(kvd_plan_open(&p, setup, &err), -1);
    if (!strstr(err.msg, message))
        fail_msg("%s: %s", text, err.msg);
}

/* Returns the squares of a - b summed, or of a if b is NULL. */
static inline double squares(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += pow((double)a[i] - (b ? (double)b[i] : 0), 2);
    return sum;
}

/* Quantises and restores the tokens of b. NULL position: 0, 1, ...; NULL level: full precision. */
static inline void code_rows(const char *text, const kvd_method_setup *setup, kvd_bits_block b,
                             float *decoded, kvd_bits_count *count)
{
    uint32_t *const position = malloc(b.n * sizeof *position);
    uint8_t *const level = malloc(b.n);
    const kvd_method m = parsed(text);
    void *self = NULL;
    kvd_err err = {""};
    assert_true(position && level);
    for (size_t i = 0; i < b.n; i++) {
        position[i] = (uint32_t)i;
        level[i] = KVD_LEVEL_HIGH;
    }
    b.position = b.position ? b.position : position;
    b.level = b.level ? b.level : level;
    const kvd_bits_method *const bits = m.plan.bits;
    OK(kvd_bits_open(bits, &m.plan.bits_values, setup, &self, &err) ||
       bits->code(self, &b, decoded, count, &err));
    kvd_bits_close(bits, self);
    free(position);
    free(level);
}

#endif

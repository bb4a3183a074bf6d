#ifndef KVD_COMMON_ARGS_H
#define KVD_COMMON_ARGS_H

#include <stddef.h>

#include "common/err.h"

/*
 * Parses `text` as one number in [lo, hi]. White space, hexadecimal digits, "inf" and "nan" are
 * errors. The message names `option`, the text and the range.
 */
int kvd_arg_size(const char *option, const char *text, size_t lo, size_t hi, size_t *out,
                 kvd_err *err);
int kvd_arg_double(const char *option, const char *text, double lo, double hi, double *out,
                   kvd_err *err);

enum { KVD_ARG_FIELD = 64 };
/*
 * Copies n bytes of `text` to field[]. A text that does not fit is cut and ends in "...". So the
 * first digits of a long number are not read as another valid number.
 */
void kvd_arg_field(const char *text, size_t n, char field[KVD_ARG_FIELD]);

/*
 * Parses "a,b,c" or a range "first:last:step". The final value of a range is within half a step of
 * `last`, and may be above `last`. *out receives *n >= 1 values, which the caller must free. A
 * value given twice is an error.
 */
int kvd_arg_doubles(const char *option, const char *text, double lo, double hi, double **out,
                    size_t *n, kvd_err *err);

/* Parses a list of whole numbers, "a,b,c", as kvd_arg_doubles does. Ranges are not accepted. */
int kvd_arg_sizes(const char *option, const char *text, size_t lo, size_t hi, size_t **out,
                  size_t *n, kvd_err *err);

#endif

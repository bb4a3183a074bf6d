#ifndef KVD_COMMON_ARGS_H
#define KVD_COMMON_ARGS_H

#include <stddef.h>

#include "common/err.h"

/* Parse a number in [lo, hi]. White space, hexadecimal numbers, "inf" and "nan" are errors. */
int kvd_arg_size(const char *option, const char *text, size_t lo, size_t hi, size_t *out,
                 kvd_err *err);
int kvd_arg_double(const char *option, const char *text, double lo, double hi, double *out,
                   kvd_err *err);

enum { KVD_ARG_FIELD = 64 };
/* Copies the n bytes of `text` to field[]. A text that does not fit is cut and ends in "...". */
void kvd_arg_field(const char *text, size_t n, char field[KVD_ARG_FIELD]);

/* Parses "a,b,c" or "first:last:step" into *out, which the caller frees. Values must differ. */
int kvd_arg_doubles(const char *option, const char *text, double lo, double hi, double **out,
                    size_t *n, kvd_err *err);

/* Parses a list "a,b,c" of whole numbers into *out, which the caller frees. */
int kvd_arg_sizes(const char *option, const char *text, size_t lo, size_t hi, size_t **out,
                  size_t *n, kvd_err *err);

#endif

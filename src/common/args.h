/* Strict parsers of numbers and of lists of numbers on the command line. */
#ifndef KVD_COMMON_ARGS_H
#define KVD_COMMON_ARGS_H

#include <stddef.h>

#include "common/err.h"

/*
 * Parses the command-line text `text` as one number within [lo, hi]. The complete string must be
 * the number, without white space, hexadecimal digits, "inf" or "nan". On failure returns -1 and
 * fills *err with `option` (the option's name), the text and the range.
 */
int kvd_arg_size(const char *option, const char *text, size_t lo, size_t hi, size_t *out,
                 kvd_err *err);
int kvd_arg_double(const char *option, const char *text, double lo, double hi, double *out,
                   kvd_err *err);

enum { KVD_ARG_FIELD = 64 };
/*
 * Copies the first n bytes of `text` to field[], to parse them as a number. If they do not fit,
 * field[] ends in "...", which no parser of numbers accepts, because a number cut short may be
 * another number.
 */
void kvd_arg_field(const char *text, size_t n, char field[KVD_ARG_FIELD]);

/*
 * Parses a list of numbers "a,b,c" or a range "first:last:step", which includes both ends and
 * reaches `last` within half a step. *out receives *n >= 1 values, which the caller must free. A
 * value given twice is an error.
 */
int kvd_arg_doubles(const char *option, const char *text, double lo, double hi, double **out,
                    size_t *n, kvd_err *err);

/* Parses a list of whole numbers "a,b,c" as kvd_arg_doubles does; ranges are not accepted. */
int kvd_arg_sizes(const char *option, const char *text, size_t lo, size_t hi, size_t **out,
                  size_t *n, kvd_err *err);

#endif

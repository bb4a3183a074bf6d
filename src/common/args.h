/*
 * Options that every program shares, and the strict parsers of numbers.
 *
 * A program names kvd_common_options_child as the children of its argp and passes a
 * kvd_common_options as that child's input (state->child_inputs[0]).
 */
#ifndef KVD_COMMON_ARGS_H
#define KVD_COMMON_ARGS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef enum { KVD_DEVICE_AUTO, KVD_DEVICE_CPU, KVD_DEVICE_CUDA } kvd_device;

typedef struct {
    const char *output; /* -o; NULL when not given                                     */
    uint64_t seed;      /* --seed; set the default before parsing                      */
    int threads;        /* --threads; 0 until kvd_threads_apply: every core allowed    */
    kvd_device device;  /* --device                                                    */
    bool quiet;         /* -q: no progress, no summary; errors are still printed       */
    bool json;          /* --json: one JSON object on stdout instead of the summary    */
} kvd_common_options;

extern const struct argp_child kvd_common_options_child[2]; /* "Common options:", then the end */

/*
 * What an argp parser returns: status is 0, ARGP_ERR_UNKNOWN, or another number where *err says what is wrong, which ends the program
 * as wrong usage.
 */
error_t kvd_args_answer(struct argp_state *state, int status, const kvd_err *err);

/*
 * Parses argv as argp_parse does, with the project's conventions: wrong usage
 * exits 2 with one line, --version prints the program's name and git revision.
 * `name` is what messages start with, e.g. "kvdim-collect". Before anything else it lets OpenBLAS start
 * with the right kernels (common/blas.h).
 */
void kvd_args_parse(const char *name, const struct argp *argp, int argc, char **argv, void *config);

/*
 * Strict numbers: the whole string, no white space, within [lo, hi]; otherwise
 * *err names the option, the text and the range. Return 0 or -1.
 */
int kvd_arg_size(const char *option, const char *text, size_t lo, size_t hi, size_t *out, kvd_err *err);
int kvd_arg_u64(const char *option, const char *text, uint64_t *out, kvd_err *err);
int kvd_arg_double(const char *option, const char *text, double lo, double hi, double *out, kvd_err *err);

/*
 * Part of an option as a text of its own. One too long for any number ends in "...", which none of the parsers takes: cut short it
 * might be another number.
 */
enum { KVD_ARG_FIELD = 64 };
void kvd_arg_field(const char *text, size_t n, char field[KVD_ARG_FIELD]);

/*
 * A list of numbers: "a,b,c" or a range "first:last:step" (both ends included,
 * last up to half a step). *out is allocated, the caller frees it; *n >= 1. A number that stands twice is an error.
 */
int kvd_arg_doubles(const char *option, const char *text, double lo, double hi, double **out, size_t *n,
                    kvd_err *err);

/* As above for whole numbers, "a,b,c" only. */
int kvd_arg_sizes(const char *option, const char *text, size_t lo, size_t hi, size_t **out, size_t *n,
                  kvd_err *err);

/* An option of which one value is wanted, in *slot (NULL: none yet): a second is an error, lest the first goes unread. */
int kvd_arg_once(const char *option, const char *text, const char **slot, kvd_err *err);

/* An option or argument that may be repeated: text is kept as list[*n], one of at most `most`. */
int kvd_arg_add(const char *option, const char *text, const char **list, size_t *n, size_t most,
                kvd_err *err);

/*
 * Settles --device for a program that has no CUDA path: `auto` becomes `cpu`,
 * `cuda` is an error that says so.
 */
int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err);

#endif

/* Prints accuracy results, as a table or as JSON. */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/inputs.h"
#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 512 };

/* Lines that explain columns in the tables of kvdim-eval and of kvdim-tasks. */
#define KVD_CACHE_LEGEND                                                                           \
    "B/token: bytes per token that the cache stores; cache: these over an uncompressed 16-bit "    \
    "cache\n"
#define KVD_READ_LEGEND                                                                            \
    "read: bytes that a step reads over an uncompressed 16-bit cache, mean over the steps of all " \
    "tasks\n"
#define KVD_SETTINGS_LEGEND                                                                        \
    "settings: keys that differ from their defaults, and the key that --sweep varies"
/* Line that explains the settings in tables without a column of p. */
#define KVD_P_SETTINGS_LEGEND                                                                      \
    "settings: p, the fraction of the dimensions removed; keys that differ from their defaults, "  \
    "and the key that --sweep varies"
/* Heading of the printed table of accuracies, and lines that explain its columns. */
extern const char kvd_accuracy_heading[], kvd_accuracy_legend[];
/* Prints `legend`, and a line if by default the cache stores numbers of 32 bits. */
void kvd_print_legend(const char *legend, const kvd_inputs_options *in);
/* Writes row i of the accuracy table as text into `line` [KVD_ACCURACY_LINE]. Returns `line`. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/* Appends the settings of row i that differ from their defaults to `line`, which has room for
 * `size` bytes. */
void kvd_settings_add(const kvd_rows *rows, size_t i, char *line, size_t size);
/* As kvd_settings_add, for tables without a column of p: appends first the fraction p of the
 * dimensions that the method of row i removes, if it removes any. */
void kvd_p_and_settings_add(const kvd_rows *rows, size_t i, char *line, size_t size);
/* Writes the method's name in row i. In "zack/qk#7", "/qk" means that only Q and K are compressed,
 * and "#7" that the random seed is 7. */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/* Writes a line of text about the strongest compression that option --target found. `line` has 2 *
 * KVD_ACCURACY_LINE bytes, and is returned. `key`: name of the parameter that was varied; `what`:
 * name of the score, such as "the accuracy". */
const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line);

/* Returns the results of n searches for the strongest compression, as JSON with null for NaN.
 * `metric`: name of the score that the compressed model must keep, such as "top1". */
json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric);

#endif

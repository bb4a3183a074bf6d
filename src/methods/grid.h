/* Many methods from one text: several after one another, or a key with several values. */
#ifndef KVD_METHODS_GRID_H
#define KVD_METHODS_GRID_H

#include <stddef.h>

#include "common/err.h"

/*
 * "leankv,th=0.01/0.05,tl=0/0.001" stands for four methods, one per combination of the values, the last key running fastest; a text
 * without '/' for itself. Texts are not parsed here. *texts is the caller's: kvd_method_grid_free.
 * More than `most` combinations are an error, and so is an empty value.
 */
int kvd_method_grid(const char *text, size_t most, char ***texts, size_t *n, kvd_err *err);
void kvd_method_grid_free(char **texts, size_t n);

/*
 * Of a list of methods, "none,zack,p=0.5,h2o+kivi", the characters of the first with its keys: up to the comma behind which something
 * without '=' stands, or to the end.
 */
size_t kvd_method_text_length(const char *list);

#endif

/*
 * A string that grows. Running out of memory is remembered and asked for once, at the end, so that
 * code which builds a page reads as the page does.
 */
#ifndef KVD_REPORT_TEXT_H
#define KVD_REPORT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    char *s; /* zero-terminated; NULL while empty */
    size_t len, size;
    bool failed; /* memory ran out; s is what was there before */
} kvd_text;

void kvd_text_add(kvd_text *t, const char *fmt, ...) KVD_PRINTF(2, 3);
/* The text as it is. */
void kvd_text_raw(kvd_text *t, const char *s);
/* & < > " ' escaped, bytes that HTML forbids replaced by '?': for everything that comes from a file. */
void kvd_text_html(kvd_text *t, const char *s);
/* | and line ends escaped for a Markdown table cell, < as &lt;. */
void kvd_text_markdown(kvd_text *t, const char *s);
/* "a", "a, b", "a, b and 3 more": items of a list, the i-th of n; `most` is how many are named. */
void kvd_text_item(kvd_text *t, size_t i, size_t n, size_t most, const char *item);

/* The text, "" when empty; never NULL. */
const char *kvd_text_get(const kvd_text *t);
int kvd_text_check(const kvd_text *t, kvd_err *err);
void kvd_text_release(kvd_text *t);

#endif

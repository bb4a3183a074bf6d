/*
 * Error messages: one line in lower case without a full stop, beginning with what failed; names in
 * single quotes. Functions with `err` return 0, or fill *err and return -1 (pointers: NULL).
 * Library code never prints or exits.
 */
#ifndef KVD_COMMON_ERR_H
#define KVD_COMMON_ERR_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_MEMORY_LIMIT_TEXT = 80 };

typedef struct {
    char msg[512]; /* zero-terminated; a longer message is cut and ends in "..." */
} kvd_err;

#if defined(__GNUC__)
#define KVD_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define KVD_PRINTF(format_index, first_arg)
#endif

/* Stores a formatted message and returns -1. Control characters become '?'. */
int kvd_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Puts a formatted context ("layer 3: ...") before the message and returns -1. */
int kvd_in(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Stores a message with the text of errno: "cannot open 'x': No such file". Returns -1. */
int kvd_fail_errno(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Stores the message for a failed allocation, with the memory limit if any. Returns -1. */
int kvd_no_memory(kvd_err *err, const char *what, unsigned long long bytes);

/* Returns -1 if `failed` is true, otherwise 0. Used for chains of calls that have filled *err. */
static inline int kvd_status(bool failed)
{
    return failed ? -1 : 0;
}

/*
 * Returns an array of n zeroed elements (not NULL even if n is 0), which the caller frees. On
 * failure returns NULL and fills *err.
 */
void *kvd_new(size_t n, size_t size, const char *what, kvd_err *err);

/*
 * Returns true if the user has limited memory. `text` receives a description: "the limit of 307200
 * KB on memory (ulimit -v)".
 */
bool kvd_memory_limit(char text[KVD_MEMORY_LIMIT_TEXT]);

#ifdef __cplusplus
}
#endif

#endif

/* Error messages: one line in lower case without a full stop. Functions with `err` return 0, or
 * fill *err and return -1 or NULL. */
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

/* Stores a formatted message and returns -1. Control characters and malformed UTF-8 become '?'. */
int kvd_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Puts a formatted text such as "layer 3: " before the message in *err, unless the message begins
 * with "layer 3" already. Returns -1. */
int kvd_in(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Stores a message with the text of errno. Returns -1. */
int kvd_fail_errno(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Stores the message that `bytes` bytes of memory for `what` cannot be allocated. Returns -1. */
int kvd_no_memory(kvd_err *err, const char *what, unsigned long long bytes);

/* Returns -1 if `failed` is true, otherwise 0. */
static inline int kvd_status(bool failed)
{
    return failed ? -1 : 0;
}

/* Returns n zeroed elements of `size` bytes, which the caller frees. On failure returns NULL and
 * fills *err. */
void *kvd_new(size_t n, size_t size, const char *what, kvd_err *err);

/* Returns true if memory is limited. `text` describes the limit: "... (ulimit -v)". */
bool kvd_memory_limit(char text[KVD_MEMORY_LIMIT_TEXT]);

#ifdef __cplusplus
}
#endif

#endif

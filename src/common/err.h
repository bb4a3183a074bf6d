/*
 * Error messages. Library code never prints and never exits: it returns 0, or -1 with a message in
 * a kvd_err owned by the caller.
 *
 * A message is one line in lower case without a full stop. It begins with what failed; names are in
 * single quotes.
 */
#ifndef KVD_COMMON_ERR_H
#define KVD_COMMON_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_MEMORY_LIMIT_TEXT = 80 };

typedef struct {
    /* Text with a final zero byte. A longer message is cut and ends in "...". */
    char msg[512];
} kvd_err;

#if defined(__GNUC__)
#define KVD_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define KVD_PRINTF(format_index, first_arg)
#endif

/*
 * Stores a formatted message and returns -1. Control characters in arguments become '?', because
 * names may come from files of unknown origin.
 */
int kvd_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Puts a formatted context ("layer 3: ...") in front of the message and returns -1. */
int kvd_in(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/*
 * Stores a message with the text of errno at the end, such as "cannot open 'x': No such file or
 * directory". Returns -1.
 */
int kvd_fail_errno(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/*
 * Stores the message for a failed allocation and returns -1. If the user has set a memory limit
 * (ulimit -v or -d), the message names it.
 */
int kvd_no_memory(kvd_err *err, const char *what, unsigned long long bytes);

/*
 * Returns true if the memory of this process is limited (RLIMIT_AS or RLIMIT_DATA). `text` then
 * receives the lower of the two limits: "the limit of 307200 KB on memory (ulimit -v)".
 */
bool kvd_memory_limit(char text[KVD_MEMORY_LIMIT_TEXT]);

#ifdef __cplusplus
}
#endif

#endif

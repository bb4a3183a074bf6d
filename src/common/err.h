/*
 * Error messages. Library code never prints and never exits: it returns 0, or -1 with a message in
 * a kvd_err owned by the caller. Only a program's main prints it.
 *
 * A message is one line: lower case, no full stop, what failed first, the subject (file, field,
 * option) in single quotes, numbers included.
 */
#ifndef KVD_COMMON_ERR_H
#define KVD_COMMON_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Size in bytes of the text that kvd_memory_limit writes, final zero included. */
enum { KVD_MEMORY_LIMIT_TEXT = 80 };

typedef struct {
    /* The error message, zero-terminated; a longer one is cut with "..." at the end. */
    char msg[512];
} kvd_err;

#if defined(__GNUC__)
#define KVD_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define KVD_PRINTF(format_index, first_arg)
#endif

/*
 * Stores a formatted message in *err and returns -1, so that a failing function can end with
 * `return kvd_fail(err, ...)`. Control characters in arguments (names from files of unknown origin)
 * are replaced by '?', so a message stays one line.
 */
int kvd_fail(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Puts a formatted context ("layer 3: ...") in front of the message in *err and returns -1. */
int kvd_in(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/*
 * Stores a formatted message with the text of errno at the end, and returns -1: "cannot open 'x':
 * No such file or directory".
 */
int kvd_fail_errno(kvd_err *err, const char *fmt, ...) KVD_PRINTF(2, 3);

/*
 * Stores the message for a failed allocation of `bytes` bytes for `what`, and returns -1. If the
 * user has limited the memory of the process (ulimit -v or -d), the message names the limit.
 * kvd_fail_errno adds the same text if errno is ENOMEM.
 */
int kvd_no_memory(kvd_err *err, const char *what, unsigned long long bytes);

/*
 * Returns true if the address space (RLIMIT_AS) or the data (RLIMIT_DATA) of this process is
 * limited. It then writes the lower limit to `text`, for example "the limit of 307200 KB on memory
 * (ulimit -v)".
 */
bool kvd_memory_limit(char text[KVD_MEMORY_LIMIT_TEXT]);

#ifdef __cplusplus
}
#endif

#endif

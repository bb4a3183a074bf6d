#include "common/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/utf8.h"

static void mark_cut(char *s, size_t size, int wanted)
{
    if (wanted >= 0 && (size_t)wanted >= size)
        memcpy(s + size - 4, "...", 4);
}

int kvd_fail(kvd_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    mark_cut(err->msg, sizeof err->msg, n);
    kvd_utf8_make_printable(err->msg);
    return -1;
}

int kvd_in(kvd_err *err, const char *fmt, ...)
{
    char context[sizeof err->msg], joined[2 * sizeof err->msg + 4];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    const size_t same = strlen(context);
    if (!strncmp(err->msg, context, same) && (err->msg[same] == ' ' || err->msg[same] == ':'))
        return -1;
    int n = snprintf(joined, sizeof joined, "%s: %s", context, err->msg);
    memcpy(err->msg, joined, sizeof err->msg - 1);
    err->msg[sizeof err->msg - 1] = '\0';
    mark_cut(err->msg, sizeof err->msg, n);
    kvd_utf8_make_printable(err->msg);
    return -1;
}

int kvd_fail_errno(kvd_err *err, const char *fmt, ...)
{
    const int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    char text[sizeof err->msg];
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char limit[KVD_MEMORY_LIMIT_TEXT];
    if (saved == ENOMEM && kvd_memory_limit(limit))
        return kvd_fail(err, "%s: %s; raise %s", text, strerror(saved), limit);
    return kvd_fail(err, "%s: %s", text, strerror(saved));
}

bool kvd_memory_limit(char text[KVD_MEMORY_LIMIT_TEXT])
{
    struct rlimit space, data;
    if (getrlimit(RLIMIT_AS, &space))
        space.rlim_cur = RLIM_INFINITY;
    if (getrlimit(RLIMIT_DATA, &data))
        data.rlim_cur = RLIM_INFINITY;
    const bool lower = data.rlim_cur < space.rlim_cur;
    const rlim_t least = lower ? data.rlim_cur : space.rlim_cur;
    (void)snprintf(text, KVD_MEMORY_LIMIT_TEXT, "the limit of %llu KB on memory (ulimit -%c)",
                   (unsigned long long)least / 1024, lower ? 'd' : 'v');
    return least != RLIM_INFINITY;
}

int kvd_no_memory(kvd_err *err, const char *what, unsigned long long bytes)
{
    char limit[KVD_MEMORY_LIMIT_TEXT];
    if (kvd_memory_limit(limit))
        return kvd_fail(err, "cannot allocate %llu bytes for %s; raise %s", bytes, what, limit);
    return kvd_fail(err, "cannot allocate %llu bytes for %s", bytes, what);
}

void *kvd_new(size_t n, size_t size, const char *what, kvd_err *err)
{
    void *const p = calloc(n ? n : 1, size);
    if (!p)
        kvd_no_memory(err, what, (unsigned long long)n * size);
    return p;
}

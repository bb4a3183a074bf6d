#include "common/run_key.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kvd_run_key_add(kvd_run_key *k, kvd_err *err, const char *name, const char *fmt, ...)
{
    char value[512];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof value)
        return kvd_fail(err, "value of %s is too long for the run key", name);
    for (char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = '?';
    const int m = snprintf(k->text + k->used, sizeof k->text - k->used, "%s=%s\n", name, value);
    if (m < 0 || (size_t)m >= sizeof k->text - k->used)
        return kvd_fail(err, "run key is longer than %zu bytes", sizeof k->text);
    k->used += (size_t)m;
    return 0;
}

int kvd_run_key_same(const char *path, const char *what, const char *then, const kvd_run_key *now,
                     kvd_err *err)
{
    const char *a = then, *b = now->text;
    while (*a || *b) {
        const int n = (int)strcspn(a, "\n"), m = (int)strcspn(b, "\n");
        if (n != m || strncmp(a, b, (size_t)n)) {
            const int name = (int)strcspn(b, "=\n"), name_then = (int)strcspn(a, "=\n");
            if (name != name_then || strncmp(a, b, (size_t)name))
                return kvd_fail(err, "'%s' %s: it has '%.*s' where this run has '%.*s'", path, what,
                                n, a, m, b);
            return kvd_fail(err, "'%s' %s: %.*s was '%.*s', is now '%.*s'", path, what, name, b,
                            n - name - 1, a + name + 1, m - name - 1, b + name + 1);
        }
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    return 0;
}

int kvd_run_key_resume(const char *path, const char *then, const kvd_run_key *now, kvd_err *err)
{
    if (!kvd_run_key_same(path, "cannot be resumed", then, now, err))
        return 0;
    const kvd_err why = *err;
    return kvd_fail(err, "%.400s; give the options of that run, --threads too, or remove the file",
                    why.msg);
}

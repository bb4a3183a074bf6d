#ifndef KVD_TESTS_CONFIG_CASE_H
#define KVD_TESTS_CONFIG_CASE_H

#include <stdio.h>
#include <string.h>

#include "model/checkpoint/config.h"
#include "unit.h"

static inline kvd_config accept(const char *text)
{
    kvd_config c;
    kvd_err err = {""};
    if (kvd_config_parse("c", text, strlen(text), &c, &err))
        fail_msg("%s: %s", text, err.msg);
    return c;
}

/* Returns `text` with the first `from` replaced by `to`. The next call overwrites the result. */
static inline const char *edit_config(const char *text, const char *from, const char *to)
{
    static char result[4096];
    const char *const at = strstr(text, from);
    assert_non_null(at);
    (void)snprintf(result, sizeof result, "%.*s%s%s", (int)(at - text), text, to,
                   at + strlen(from));
    return result;
}

/* Checks that a config.json with `from` replaced by `to` fails with `message`. */
static inline void refuse_config(const char *text, const char *from, const char *to,
                                 const char *message)
{
    const char *const other = edit_config(text, from, to);
    kvd_config c;
    kvd_err err = {""};
    if (kvd_config_parse("c", other, strlen(other), &c, &err) == 0)
        fail_msg("%s is read", to);
    if (!strstr(err.msg, message))
        fail_msg("%s: '%s' lacks '%s'", to, err.msg, message);
}

#endif

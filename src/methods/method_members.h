/*
 * Members of a parsed method NAME+NAME... that have parameters. Private to method.c and
 * method_keys.c.
 */
#ifndef KVD_METHODS_METHOD_MEMBERS_H
#define KVD_METHODS_METHOD_MEMBERS_H

#include "methods/method.h"

/* Member of a combination, except those with rotations from a spectrum file (zack, fdc, ...). */
typedef struct {
    const kvd_method_info *info;
    kvd_parameter_values *values;
} kvd_keyed;

enum { KVD_MEMBERS = 6 };

/* Writes the members to `out`, a quantiser last. Returns their number. */
int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS]);

int kvd_method_find_key(const kvd_keyed *k, const char *key);

/*
 * Sets the parameters in `text`, "KEY=VALUE,..." or NULL, then missing defaults of a named
 * combination, and checks all. Modifies `text`. Fails as kvd_method_parse does.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

void kvd_method_write_settings(kvd_method *m);

#endif

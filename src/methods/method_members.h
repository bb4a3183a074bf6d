/*
 * Members of a parsed method NAME+NAME... that have parameters of their own. Only method.c and
 * method_keys.c include this file.
 */
#ifndef KVD_METHODS_METHOD_MEMBERS_H
#define KVD_METHODS_METHOD_MEMBERS_H

#include "methods/method.h"

/*
 * Member of a combination. Members that take their rotations from a spectrum file (zack, fdc, ...)
 * are not represented.
 */
typedef struct {
    const kvd_method_info *info;
    /* parameter values; stored in the kvd_method */
    kvd_parameter_values *values;
} kvd_keyed;

enum { KVD_MEMBERS = 6 /* largest number of members with parameters in one combination */ };

/* Writes the members to `out` and returns their number. A quantiser is always the last of them. */
int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS]);

/* Returns the index of `key` among the member's parameters, or -1 if the member lacks it. */
int kvd_method_find_key(const kvd_keyed *k, const char *key);

/*
 * Sets the parameters in `text`, "KEY=VALUE,...", which is modified; NULL means no parameters. Then
 * sets those defaults of a named combination that `text` does not give, and checks that all
 * parameters fit together. Fails as kvd_method_parse does.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

void kvd_method_write_settings(kvd_method *m);

#endif

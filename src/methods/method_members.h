/*
 * Members of a parsed method, that is of NAME+NAME..., that have parameters of their own. For
 * method.c and method_keys.c.
 */
#ifndef KVD_METHODS_METHOD_MEMBERS_H
#define KVD_METHODS_METHOD_MEMBERS_H

#include "methods/method.h"

/* Member of a method that has its own parameters: any method but a dims method with widths. */
typedef struct {
    const kvd_method_info *info;
    kvd_parameter_values *values; /* parameter values, stored in the kvd_method */
} kvd_keyed;

enum { KVD_MEMBERS = 6 /* most members with keys that one method can have */ };

/*
 * Fills `out` with the members of *m that have parameters, and returns their number. A method of
 * the bits axis comes last.
 */
int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS]);

/* Returns the index of `key` among the parameters of a member, or -1 if there is none. */
int kvd_method_find_key(const kvd_keyed *k, const char *key);

/*
 * Sets the parameters in `text`, "KEY=VALUE,..." (modified; NULL: none), then those not given that
 * a combination sets, and checks that all fit together. Fails on anything that kvd_method_parse
 * refuses.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

/* Writes the parameters of all members to m->settings, in the form that result files use. */
void kvd_method_write_settings(kvd_method *m);

#endif

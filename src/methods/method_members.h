/*
 * Members of a parsed method NAME+NAME... that have parameters of their own. Used by method.c and
 * method_keys.c only.
 */
#ifndef KVD_METHODS_METHOD_MEMBERS_H
#define KVD_METHODS_METHOD_MEMBERS_H

#include "methods/method.h"

/*
 * Member of a combination that has its own parameters: any method but one that takes its rotations
 * from a spectrum file (zack, fdc, ...).
 */
typedef struct {
    const kvd_method_info *info;
    /* Values of the member's parameters; stored in the kvd_method. */
    kvd_parameter_values *values;
} kvd_keyed;

enum { KVD_MEMBERS = 6 /* most members with parameters in one combination */ };

/*
 * Fills `out` with the members of *m that have parameters, and returns their number. A quantiser
 * (bits axis) comes last.
 */
int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS]);

/*
 * Returns the index of parameter `key` in the list of a member's parameters, or -1 if the member
 * has no such parameter.
 */
int kvd_method_find_key(const kvd_keyed *k, const char *key);

/*
 * Sets the parameters in `text`, "KEY=VALUE,...", which the function modifies; NULL means none.
 * Then sets the defaults of a named combination that `text` does not give, and checks that all
 * parameters fit together. Fails on anything that kvd_method_parse refuses.
 */
int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err);

/* Writes the parameters of all members to m->settings, in the format that result files use. */
void kvd_method_write_settings(kvd_method *m);

#endif
